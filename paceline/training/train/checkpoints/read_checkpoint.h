#pragma once

// The weights of a checkpoint, for inference or for another program: whole tensors, however the run
// divided its model, its parameters or its optimizer.
//
//   models::MnistNet net;
//   load_weights(*net, train::read_checkpoint("run").weights);
//   net->eval();
//
// To continue a run, use Checkpointer (checkpointer.h).
//
// Thread safety: pure functions. A run may write to the directory at the same time.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/training/models/layers.h"

namespace paceline::train {

struct CheckpointWeights {
  std::int64_t step = 0;
  // Parameters and buffers by their names in the module, on the CPU and contiguous; no other tensor
  // of the checkpoint.
  StateDict weights;
  bool averaged = false;  // whether `weights` has the averaged parameters
};

// Reads the weights of a checkpoint in a directory: of this `step`, or of the newest one that is
// not damaged. With `averaged`, reads the average of the weights (ExponentialMovingAverage) if the
// checkpoint has one, rounded to the parameters' types; otherwise the weights themselves.
//
// Every byte that is read is checked. A damaged checkpoint is skipped with a warning if `step` is
// nullopt. Not collective: each rank that calls it reads all tensors. Error(kInvalid) when the
// directory has no checkpoint, has none of this step, or when the checkpoint has no tensor of a
// model; kCorrupt when the checkpoint of `step` is damaged or, without `step`, all of them are.
CheckpointWeights read_checkpoint(const std::string& directory,
                                  std::optional<std::int64_t> step = {}, bool averaged = true);

}  // namespace paceline::train
