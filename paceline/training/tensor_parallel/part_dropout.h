#pragma once

// Dropout of what is divided among ranks: every rank drops elements of its own, while
// paceline::dropout (training/tensor/random.h) drops the same ones on every rank whose generator
// was seeded alike.
//
// How. A number drawn from rank_generator(), the same on every rank of the group, and this rank's
// number seed a generator for this call. So the ranks' generators stay in step, and whatever saves
// and restores them (checkpoints, logical shards, activation checkpoints) covers both kinds.
//
// Thread safety: that of rank_generator().

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// As paceline::dropout, which it is in a group of one. Error(kInvalid) unless 0 <= p < 1.
at::Tensor part_dropout(const ProcessGroup& group, const at::Tensor& input, double p,
                        bool is_training);

}  // namespace paceline
