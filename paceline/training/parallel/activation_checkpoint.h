#pragma once

// Activation checkpointing (Chen et al., 2016): a part of a model keeps only its inputs in the
// forward pass, and runs again in the backward pass to get the rest. Memory for time.
//
//   x = paceline::checkpoint([this](const at::Tensor& x) { return block_->forward(x); }, x);
//
// The part runs under the same random state both times, so dropout drops the same elements. Its
// backward pass runs within that of the whole model, and its parameters get their gradients there.
// DistributedDataParallel averages gradients of parameters that several parts share at the end of
// the whole pass.

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

using TensorList = std::vector<at::Tensor>;

// Requires: `part` does the same when it is called again, and lives as long as the graph. Its
// outputs are tensors that depend on nothing that requires a gradient but `inputs` and parameters,
// and no DistributedDataParallel's forward() runs in it: wrap parts within the module instead.
// Only the CPU's random state is restored. Any thread.
TensorList checkpoint(std::function<TensorList(const TensorList& inputs)> part,
                      const TensorList& inputs);
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor& input)> part,
                      const at::Tensor& input);

// Whether this thread is running such a part, for the first or for the second time.
bool is_in_checkpoint();

// Calls `then` when the outermost backward pass of this thread has computed all gradients; in the
// order of the calls. Requires: within a backward pass.
void at_end_of_backward(std::function<void()> then);

}  // namespace paceline
