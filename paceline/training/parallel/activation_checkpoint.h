#pragma once

// Activation checkpointing (Chen et al., 2016) trades time for memory: a part of a model keeps only
// its inputs in the forward pass, and runs again in the backward pass to compute the rest.
//
//   x = paceline::checkpoint([this](const at::Tensor& x) { return block_->forward(x); }, x);
//
// The part runs with the same random state both times, so dropout drops the same elements. Its
// backward pass runs within the whole model's, and its parameters get their gradients there.
// DistributedDataParallel averages gradients of parameters that several parts share at the end of
// the whole pass.

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

using TensorList = std::vector<at::Tensor>;

// Runs `part` now, and again in the backward pass. Requires: `part` computes the same when it is
// called again, and can be called for as long as the graph lives. Among tensors that require
// gradients, its outputs depend only on `inputs` and parameters. It does not call
// DistributedDataParallel's forward(): use checkpoint() within the wrapped module instead. Only the
// CPU's random state is restored. Any thread.
TensorList checkpoint(std::function<TensorList(const TensorList& inputs)> part,
                      const TensorList& inputs);
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor& input)> part,
                      const at::Tensor& input);

// Whether this thread is running a checkpointed part, for the first or for the second time.
bool is_in_checkpoint();

// Queues `then`, to be called once the outermost backward pass of this thread has computed all
// gradients. Queued functions run in order. Requires: a backward pass is running.
void at_end_of_backward(std::function<void()> then);

}  // namespace paceline
