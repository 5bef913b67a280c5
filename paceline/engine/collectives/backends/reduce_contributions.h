#pragma once

// Reductions that a library lacks, or does otherwise than Paceline promises (NaN wins in min and
// max): the library moves every rank's contribution, Paceline's kernel combines them. Each element
// is combined in the engine's order, so its bits are the engine's. The price is memory for
// world_size contributions, and as many times the traffic.

#include <cstddef>
#include <functional>
#include <vector>

#include "paceline/engine/collectives/collective.h"

namespace paceline {

// Carries out an all_reduce, a reduce or a reduce_scatter. `move` is called once, on every rank,
// with the call that brings the contributions: an all_gather or an all_to_all into `contributions`.
// That is the caller's because after an error of `move` the library may still write to it.
// Thread safety: none of its own; `move` is called in the calling thread.
void reduce_contributions(const Collective& call, int rank, int world_size,
                          std::vector<std::byte>& contributions,
                          const std::function<void(const Collective& moved)>& move);

}  // namespace paceline
