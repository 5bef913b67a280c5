#pragma once

// What there is to tell when no collective is under way, in the order in which it is asked for.

#include <optional>
#include <span>

#include "paceline/engine/collectives/flight/explanation.h"
#include "paceline/engine/collectives/flight/positions.h"

namespace paceline::flight {

// The oldest message without the other side.
std::optional<Explanation> find_lonely_message(std::span<const Flight> flights,
                                               std::span<const GroupPositions> groups,
                                               Failures failures);

// Ranks that ended without a word, outside of any operation.
std::optional<Explanation> find_silent_ends(std::span<const Flight> flights,
                                            std::span<const GroupPositions> groups);

// Of the rank whose process has failed, when that is known.
std::optional<Explanation> find_own_words(std::span<const Flight> flights);

// No rank waits: what the ranks finished last, and which kept the others waiting.
Explanation explain_rest(std::span<const GroupPositions> groups);

}  // namespace paceline::flight
