#pragma once

// Converts the state of a communication hook (training/parallel/communication_hook.h) to tensors of
// a checkpoint, the rest of a run's small state to the checkpoint's metadata, and both back. The
// checkpoint contains the residuals of all ranks: for each rank as many bytes as the gradients.
//
// Only the first two functions are collective.

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
#include "paceline/training/parallel/reducer/gradient_placement.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// Returns the tensors of HookState::shared as "shared.NAME", and those of HookState::owed, stacked
// over the ranks along a new dim 0, as "owed.NAME". Only `root`, or every rank if it is nullopt,
// gets the values of "owed.NAME"; other ranks get uninitialised tensors.
optim::NamedTensors gather_hook_state(ProcessGroup& group, const HookState& state,
                                      std::optional<int> root);

// Returns this rank's part of the tensors from gather_hook_state(), which only `root` must have. A
// rank gets the residuals that it saved or, if the number of ranks has changed, the mean of all
// ranks' residuals. `words`: HookState::words.
HookState scatter_hook_state(ProcessGroup& group, const optim::NamedTensors& saved, int root,
                             optim::Metadata words);

// The functions below convert the metadata of a training run's checkpoint, and check whether a
// checkpoint belongs to a run.

inline constexpr const char* kRandomStates = "random_states";  // the tensor has a row for each rank
inline constexpr const char* kHookTensors = "hook.";  // the prefix of the names of a hook's tensors
// The key of the launcher's name for the job, in the metadata of a checkpoint in memory.
inline constexpr const char* kJobWord = "job";

inline constexpr const char* kStates = "state.";  // the prefix of the names of attached states

// Returns the metadata for a checkpoint of this run. `optimizer`: null if the run has none of
// Paceline's optimizers; the same below.
std::map<std::string, std::string> words_of(const TrainingState& state,
                                            const optim::Optimizer* optimizer,
                                            const RunParts& parts);

// Error(kInvalid), with the differences, when the checkpoint is not from a training run, is from
// another optimizer, or was saved with other parameters of schedule, scaler, average of the
// weights or communication hook, or with other attached states.
void require_compatible(const Manifest& saved, const optim::Optimizer* optimizer,
                        const RunParts& parts);
// Error(kInvalid) for tensors that only the checkpoint or only the run has or whose shape or type
// differs; it counts each kind and names one tensor. `wanted`: the boxes that all ranks need.
void require_same_tensors(const Manifest& saved, const std::vector<HeldBox>& wanted);

// Reads the state from the metadata of a checkpoint that require_compatible() has accepted.
TrainingState state_in(const std::map<std::string, std::string>& metadata);
// Passes the saved learning rates to the optimizer, and the saved states to the schedule and the
// scaler.
void take_words(const std::map<std::string, std::string>& metadata, optim::Optimizer* optimizer,
                const RunParts& parts);
// Returns the words of the communication hook's HookState.
optim::Metadata hook_words_in(const std::map<std::string, std::string>& metadata);
// Returns the seed in this metadata; nullopt when the checkpoint is not from a training run.
std::optional<std::uint64_t> seed_in(const std::map<std::string, std::string>& metadata);

}  // namespace paceline::train
