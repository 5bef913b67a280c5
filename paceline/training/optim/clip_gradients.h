#pragma once

// Norms and clipping of gradients, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_ compute
// them. The bits of a norm do not depend on the threads, the ranks, the instruction set or the
// memory layout. Each gradient, in the memory order of its parameter, is cut into blocks of 1,024
// elements. Element i of a block is added to lane i mod 16, in float64; then the lanes are added as
// a balanced tree, and the blocks in order. (For norm types other than 1, 2 and infinity, the C
// library computes the powers.) If the model is divided among ranks (Optimizer::set_model_parts),
// the ranks' sums are added in rank order.
//
// Call these functions after the backward pass. If the gradients or the model are divided among
// ranks, pass the optimizer; norms are then collective. Parameters without a gradient are left out;
// a tensor that is passed twice counts once. Error(kInvalid) for gradients that are not dense
// float32, bfloat16 or float16 tensors on the CPU or CUDA, and when a function gets parameters
// although their gradients or, for norms, their model are known to be divided. Thread safety: none.

#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

// Returns the norm of all gradients as if they were one vector; changes nothing. `norm_type`, also
// below: above 0; may be infinity.
double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2);
double grad_norm(const Optimizer& optimizer, double norm_type = 2);

// Multiplies the gradients by max_norm / (norm + 1e-6) if that is below 1. Returns the norm before
// clipping. If the norm is not finite, all gradients become 0 or NaN, as in PyTorch; with
// `error_if_nonfinite` they do not change; Error(kInvalid) names the first non-finite gradient.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                      double norm_type = 2, bool error_if_nonfinite = false);
double clip_grad_norm(const Optimizer& optimizer, double max_norm, double norm_type = 2,
                      bool error_if_nonfinite = false);

// Clamps each element to [-clip_value, clip_value]; NaN stays NaN.
void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);
void clip_grad_value(const Optimizer& optimizer, double clip_value);

}  // namespace paceline::optim
