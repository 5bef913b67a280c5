#pragma once

// The division that turns a sum into a mean, for libraries that only add up.

#include "paceline/engine/collectives/collective.h"

namespace paceline {

// After a reduction whose library has added up: divides the result, in place, where this rank has
// one and a mean was asked for. Thread safety: pure.
void finish_mean(const Collective& call, int rank, int world_size);

}  // namespace paceline
