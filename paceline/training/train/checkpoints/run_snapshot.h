#pragma once

// Converts the state of a communication hook (training/parallel/communication_hook.h) to tensors of
// a checkpoint, and back. The checkpoint contains the residuals of all ranks, which take the size
// of the gradients once for each rank.
//
// The first two functions are collective.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/files/checkpoint/box_plan.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// Returns "shared.NAME" unchanged, and "owed.NAME" with a first dimension for the ranks. `root`
// gets the values, or every rank if there is no root; other ranks get tensors without values.
optim::NamedTensors gather_hook_state(ProcessGroup& group, const HookState& state,
                                      std::optional<int> root);

// Returns this rank's part of the tensors of gather_hook_state(), which `root` has. A rank gets the
// residual that it saved, or, if the number of ranks has changed, the mean of all residuals.
// `words`: the words of the state.
HookState scatter_hook_state(ProcessGroup& group, const optim::NamedTensors& saved, int root,
                             optim::Words words);

// The metadata of a training run's checkpoint, and whether a checkpoint fits this run. The
// functions below are local.

inline constexpr const char* kRandomStates = "random_states";  // one row for each rank
inline constexpr const char* kHookTensors = "hook.";           // the prefix of a hook's tensors
// The key of the launcher's name for the job, in the metadata of a checkpoint in memory.
inline constexpr const char* kJobWord = "job";

// The metadata of a checkpoint of this run.
std::map<std::string, std::string> words_of(const TrainingState& state,
                                            const optim::Optimizer& optimizer,
                                            const RunParts& parts);

// Error(kInvalid), with all differences, when the checkpoint is not one of a training run or has
// another optimizer, or when its schedule, scaler, average of the weights, communication hook or
// periodic averager has other parameters.
void require_own(const Manifest& saved, const optim::Optimizer& optimizer, const RunParts& parts);
// Error(kInvalid), with the tensors that only the checkpoint or only the run has, and those that
// have another shape or type. `wanted`: the boxes that all ranks of the run want.
void require_same_tensors(const Manifest& saved, const std::vector<HeldBox>& wanted);

// Reads the state from the metadata of a checkpoint that fits this run.
TrainingState state_in(const std::map<std::string, std::string>& metadata);
// Passes the saved learning rates to the optimizer, and the saved states to the schedule, the
// scaler and the periodic averager.
void take_words(const std::map<std::string, std::string>& metadata, optim::Optimizer& optimizer,
                const RunParts& parts);
// The words of the communication hook's HookState.
optim::Words hook_words_in(const std::map<std::string, std::string>& metadata);
// The seed in this metadata; nothing when the checkpoint is not one of a training run.
std::optional<std::uint64_t> seed_in(const std::map<std::string, std::string>& metadata);

}  // namespace paceline::train
