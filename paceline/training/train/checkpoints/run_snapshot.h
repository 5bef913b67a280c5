#pragma once

// What a communication hook keeps between passes, as tensors of a checkpoint, and back
// (training/parallel/communication_hook.h). What each rank owes is saved with those of all ranks,
// one after another: a checkpoint has as many times the size of the gradients more as there are
// ranks.
//
// All functions are collective.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/files/checkpoint/box_plan.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// "shared.NAME" as it is, and "owed.NAME" with a first dimension for the ranks. On `root`, or, if
// there is none, on every rank; elsewhere the tensors are there without their values.
optim::NamedTensors gather_hook_state(ProcessGroup& group, const HookState& state,
                                      std::optional<int> root);

// This rank's part of what gather_hook_state() gave, which `root` has: with the same number of
// ranks what it owed, otherwise the mean of what all owed. `words`: the state's.
HookState scatter_hook_state(ProcessGroup& group, const optim::NamedTensors& saved, int root,
                             optim::Words words);

// What a training run says of itself in a checkpoint beside its tensors (run_boxes.h), and whether
// a checkpoint is one of this run. Local: nothing here is collective.

inline constexpr const char* kRandomStates = "random_states";  // one row a rank
inline constexpr const char* kHookTensors = "hook.";           // begins the names of a hook's
// In the metadata of a checkpoint in memory: the launcher's name for the job.
inline constexpr const char* kJobWord = "job";

// For the metadata of a checkpoint.
std::map<std::string, std::string> words_of(const TrainingState& state,
                                            const optim::Optimizer& optimizer,
                                            const RunParts& parts);

// Error(kInvalid) with all that differs when the checkpoint is of another optimizer, or of a
// schedule, a scaler, an average of the weights, a communication hook or a periodic averager with
// other parameters, or of no training.
void require_own(const Manifest& saved, const optim::Optimizer& optimizer, const RunParts& parts);
// Error(kInvalid) listing what the checkpoint has and the run has not, and the other way round.
// `wanted`: what all ranks of the run want.
void require_same_tensors(const Manifest& saved, const std::vector<HeldBox>& wanted);

// Of the metadata of a checkpoint that is this run's.
TrainingState state_in(const std::map<std::string, std::string>& metadata);
// Gives the optimizer its learning rates and the schedule, the scaler and the periodic averager
// their states.
void take_words(const std::map<std::string, std::string>& metadata, optim::Optimizer& optimizer,
                const RunParts& parts);
// Of a communication hook's HookState.
optim::Words hook_words_in(const std::map<std::string, std::string>& metadata);
// Of a checkpoint with this metadata; nothing when it is not one of a training run.
std::optional<std::uint64_t> seed_in(const std::map<std::string, std::string>& metadata);

}  // namespace paceline::train
