#pragma once

// Where a rank is that is not where the others wait for it.

#include <span>
#include <string>

#include "paceline/engine/collectives/flight/positions.h"

namespace paceline::flight {

// What it waits in, or failed in, beside the collectives of the position's group; null: nothing.
const FlightOperation* unfinished_elsewhere(const Position& position);

// "it last finished all_reduce #41".
std::string last_finished(const std::string& who, const Position& position);

// " and has been in recv (...) for 2.0 s"; empty when there is nothing to tell.
std::string whereabouts(const Position& position, std::span<const GroupPositions> groups);

}  // namespace paceline::flight
