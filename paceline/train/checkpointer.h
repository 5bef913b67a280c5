#pragma once

// Saves and restores a whole training run: parameters, buffers, optimizer, position in the data,
// and every rank's random state. A run that was interrupted and resumed ends with the same bits as
// one that was not, given the same number of ranks.
//
// Rank 0 writes and reads (replicas are equal, a sharded optimizer's state is gathered); the others
// get everything from it, so that only rank 0 needs the folder.
//
// Thread safety: none.

#include <memory>
#include <optional>
#include <string>

#include <torch/nn/module.h>

#include "paceline/checkpoint/checkpoint_directory.h"
#include "paceline/collectives/process_group.h"
#include "paceline/optim/optimizer.h"
#include "paceline/train/training_state.h"

namespace paceline::train {

class Checkpointer {
 public:
  // Collective. Error(kInvalid) on every rank when another job writes to `path`, kSystem when it
  // cannot be made.
  Checkpointer(std::shared_ptr<ProcessGroup> group, const std::string& path, int keep = 3);

  // Collective. A checkpoint that cannot be written (disk full) is logged and costs nothing else:
  // the older ones stay; false then, on every rank.
  bool save(const TrainingState& state, const torch::nn::Module& module,
            const optim::Optimizer& optimizer);

  // Collective. Restores the newest checkpoint that verifies, in place; nothing when there is none.
  // Error on every rank: kCorrupt when none verifies, kInvalid listing what differs when it is of
  // another model or optimizer.
  std::optional<TrainingState> restore(torch::nn::Module& module, optim::Optimizer& optimizer);

 private:
  std::string read_newest(const optim::NamedTensors& tensors, at::Tensor& random_states);

  const std::shared_ptr<ProcessGroup> group_;     // owners: the user and this
  std::optional<CheckpointDirectory> directory_;  // rank 0's
};

}  // namespace paceline::train
