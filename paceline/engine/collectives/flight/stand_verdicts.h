#pragma once

// Why a collective did not end, told from the members of its group: which rank called something
// else, died, did not arrive, stopped, or failed.

#include <optional>
#include <span>

#include "paceline/engine/collectives/flight/explanation.h"
#include "paceline/engine/collectives/flight/stand.h"

namespace paceline::flight {

// Its members describe the operation differently.
std::optional<Explanation> find_mismatch(const Stand& stand);

// A circle: a rank that is missing in one of them is inside the next, and one that is missing in
// the last inside the first.
Explanation explain_crossing(std::span<const Stand* const> circle);

// What is missing here is in no other stand. `groups`: all, for what its members do elsewhere.
Explanation explain_stand(const Stand& stand, std::span<const GroupPositions> groups);

}  // namespace paceline::flight
