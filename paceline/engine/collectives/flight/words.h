#pragma once

// How operations and ranks are named in an explanation.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/flight/positions.h"

namespace paceline::flight {

// "rank 3", "ranks 0-2, 7".
std::string ranks_text(std::vector<int> ranks);
// "all_reduce #42".
std::string short_text(const FlightOperation& operation);
// "all_reduce #42 (float32 x 1000, sum, group world)"; without the group when its name is empty.
// `group` says which ranks of the world a root and the other side of a message are; may be null.
std::string full_text(const FlightOperation& operation, const GroupPositions* group);
// Of an operation of `flight`, in whichever of `groups` it is.
std::string full_text(const FlightOperation& operation, const Flight& flight,
                      std::span<const GroupPositions> groups);
// Two ranks agree on an operation exactly when their texts are equal. `group` as above.
std::string agreed_text(const FlightOperation& operation, const GroupPositions* group);
// "3.1 s", "0.002 s".
std::string seconds_text(double seconds);

}  // namespace paceline::flight
