#pragma once

// What an agent tells other hosts of its ranks' flight records (engine/telemetry/flight_file.h):
// where each rank is in each of its groups, as text of bounded size. Enough for explain() to name
// who is where; not enough to find a straggler.
//
// No clock reading travels, only how long ago something was: whoever reads it gets times on its own
// clocks, later by as long as the text was on its way.
//
// Pure, but for the clocks.

#include <span>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/flight_file.h"

namespace paceline::launcher {

// Of one rank: its groups, the last operation that it finished in each, and those that it has not.
// Ranks beyond 384 KiB of text are left out; whoever reads it sees that their records are missing.
std::string encode_digest(std::span<const Flight> flights);
// Error(kCorrupt) when the text is none.
std::vector<Flight> decode_digest(const std::string& text);

}  // namespace paceline::launcher
