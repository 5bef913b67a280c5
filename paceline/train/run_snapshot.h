#pragma once

// A training run as the tensors and words of a checkpoint, and back. Local: nothing here is
// collective.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/checkpoint/checkpoint_directory.h"
#include "paceline/checkpoint/shared_staging.h"
#include "paceline/checkpoint/snapshot.h"
#include "paceline/optim/optimizer.h"
#include "paceline/train/run_parts.h"
#include "paceline/train/training_state.h"

namespace paceline::train {

// All tensors that make up a run, by the names they have in a checkpoint: the module's parameters,
// then its buffers, then the optimizer's state, then that of the average of the weights (empty:
// none).
optim::NamedTensors tensors_of(const torch::nn::Module& module,
                               const optim::NamedTensors& optimizer_state,
                               const optim::NamedTensors& average_state);

// A snapshot and the tensors whose bytes it shows.
struct OwnedSnapshot {
  optim::NamedTensors tensors;
  Snapshot snapshot;
};

// `hook_state`: as gather_hook_state() gives it. `random_states`: one row a rank.
OwnedSnapshot snapshot_of(int world_size, const TrainingState& state, optim::NamedTensors tensors,
                          const optim::Optimizer& optimizer, const RunParts& parts,
                          const optim::NamedTensors& hook_state, const at::Tensor& random_states);
// The same without its tensors.
Snapshot words_of(int world_size, const TrainingState& state, const optim::Optimizer& optimizer,
                  const RunParts& parts);

// What one rank holds of a run, and the tensors whose bytes are shown.
struct HeldRun {
  optim::NamedTensors tensors;
  std::vector<HeldTensor> held;
};

// The same tensors for ranks that put the snapshot together. Buffers, `hook_state` and
// `random_states`, which need have a value on rank 0 only, are rank 0's. The optimizer's state is
// `whole_state`, or, where that is null, the part of it that this rank keeps.
HeldRun held_run(const torch::nn::Module& module, const optim::Optimizer& optimizer,
                 const optim::NamedTensors* whole_state, const RunParts& parts,
                 const optim::NamedTensors& hook_state, const at::Tensor& random_states);

// What take_over() does not fill in itself.
struct TakenRun {
  std::string words;  // for state_in() and take_words()
  at::Tensor random_states;
  optim::NamedTensors hook_state;  // as gather_hook_state() gave it
};

// Fills the run's tensors. Error(kInvalid), with nothing changed, when the checkpoint is of another
// model or optimizer, or of a schedule, a scaler, an average of the weights, a communication hook
// or a periodic averager with other parameters, with all that differs.
TakenRun take_over(const LoadedCheckpoint& loaded, const optim::NamedTensors& tensors,
                   const optim::Optimizer& optimizer, const RunParts& parts);

TrainingState state_in(const std::string& words);
// Gives the optimizer its learning rates and the schedule, the scaler and the periodic averager
// their states. Requires: words that take_over() returned, for the same parts.
void take_words(const std::string& words, optim::Optimizer& optimizer, const RunParts& parts);
// Of a communication hook's HookState.
optim::Words hook_words_in(const std::string& words);
// Of a checkpoint with this metadata; nothing when it is not one of a training run.
std::optional<std::uint64_t> seed_in(const std::map<std::string, std::string>& metadata);

}  // namespace paceline::train
