#pragma once

// Activation checkpointing (Chen et al., 2016) trades time for memory: a part of a model keeps only
// its inputs in the forward pass, and runs again in the backward pass to compute the activations.
//
//   x = activation_checkpoint([this](const at::Tensor& x) { return block_->forward(x); }, x);
//
// The part runs with the same random state both times, so dropout drops the same elements. The
// part's backward pass runs inside that of the whole model and computes the gradients of the part's
// parameters. If several parts share a parameter, DistributedDataParallel averages its gradient at
// the end of the whole pass.

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

using TensorList = std::vector<at::Tensor>;

// Runs `part` now, and again in the backward pass. Requires: `part` computes the same values when
// it is called again, and can be called until the graph is destroyed; its outputs depend on no
// tensors that require gradients except `inputs` and parameters; and it does not call
// DistributedDataParallel's forward() (use activation_checkpoint() within the wrapped module
// instead). Only the CPU's random state is restored. Any thread may call this function.
TensorList activation_checkpoint(std::function<TensorList(const TensorList& inputs)> part,
                                 const TensorList& inputs);
at::Tensor activation_checkpoint(std::function<at::Tensor(const at::Tensor& input)> part,
                                 const at::Tensor& input);

}  // namespace paceline
