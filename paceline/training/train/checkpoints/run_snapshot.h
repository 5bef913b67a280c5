#pragma once

// The part of a training run's checkpoint that is not boxes of tensors (run_boxes.h): the state of
// a communication hook as tensors, and words about the run, which tell whether a checkpoint is one
// of this run. gather_hook_state() and scatter_hook_state() are collective; the other functions are
// local.

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

// Collective. Returns the tensors that a communication hook keeps between passes
// (training/parallel/communication_hook.h): "shared.NAME" as it is, and "owed.NAME" with a first
// dimension for the ranks. So a checkpoint grows by the size of the gradients for each rank. The
// values are on `root` or, without a root, on every rank; elsewhere the tensors have no values.
optim::NamedTensors gather_hook_state(ProcessGroup& group, const HookState& state,
                                      std::optional<int> root);

// Collective. Returns this rank's part of a result of gather_hook_state(), which `root` has: what
// this rank owed, if the number of ranks is the same, otherwise the mean of what all ranks owed.
// `words`: those of the state.
HookState scatter_hook_state(ProcessGroup& group, const optim::NamedTensors& saved, int root,
                             optim::Words words);

inline constexpr const char* kRandomStates = "random_states";  // one row a rank
inline constexpr const char* kHookTensors = "hook.";           // the prefix of a hook's names
// In the metadata of a checkpoint in memory: the launcher's name for the job.
inline constexpr const char* kJobWord = "job";

// Returns the words of a run for the metadata of a checkpoint.
std::map<std::string, std::string> words_of(const TrainingState& state,
                                            const optim::Optimizer& optimizer,
                                            const RunParts& parts);

// A checkpoint as it was found, without the bytes of its tensors.
struct SavedRun {
  std::int64_t step = 0;
  std::vector<HeldBox> tensors;  // names, types and shapes; boxes are empty
  std::map<std::string, std::string> metadata;
};

// Throws Error(kInvalid) with all differences when the checkpoint is of another optimizer, of no
// training run, or of a schedule, a scaler, an average of the weights, a communication hook or a
// periodic averager with other parameters.
void require_own(const SavedRun& saved, const optim::Optimizer& optimizer, const RunParts& parts);
// Throws Error(kInvalid) that lists what the checkpoint has and the run lacks, and the reverse.
// `wanted`: the tensors that all ranks of the run want.
void require_same_tensors(const SavedRun& saved, const std::vector<HeldBox>& wanted);

// Returns the state in the metadata of a checkpoint of this run.
TrainingState state_in(const std::map<std::string, std::string>& metadata);
// Gives the optimizer its learning rates and the schedule, the scaler and the periodic averager
// their states.
void take_words(const std::map<std::string, std::string>& metadata, optim::Optimizer& optimizer,
                const RunParts& parts);
// Returns the words of a communication hook's HookState.
optim::Words hook_words_in(const std::map<std::string, std::string>& metadata);
// Returns the seed; nothing when the metadata is not that of a training run.
std::optional<std::uint64_t> seed_in(const std::map<std::string, std::string>& metadata);

}  // namespace paceline::train
