#pragma once

// What a communication hook keeps between passes, as tensors of a checkpoint, and back
// (training/parallel/hook_state.h). What each rank owes is saved with those of all ranks, one after
// another: a checkpoint has as many times the size of the gradients more as there are ranks.
//
// All functions are collective.

#include <optional>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/hook_state.h"

namespace paceline::train {

// "shared.NAME" as it is, and "owed.NAME" with a first dimension for the ranks. On `root`, or, if
// there is none, on every rank; elsewhere the tensors are there without their values.
optim::NamedTensors gather_hook_state(ProcessGroup& group, const HookState& state,
                                      std::optional<int> root);

// This rank's part of what gather_hook_state() gave, which `root` has: with the same number of
// ranks what it owed, otherwise the mean of what all owed. `words`: the state's.
HookState scatter_hook_state(ProcessGroup& group, const optim::NamedTensors& saved, int root,
                             optim::Words words);

}  // namespace paceline::train
