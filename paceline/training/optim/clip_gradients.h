#pragma once

// Gradients that are not too large, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_ make
// them.
//
// The norm has the same bits for any number of threads and ranks, on any instruction set, and
// whatever the memory layout of the gradients, because the order of its sum is fixed: each
// gradient, in the memory order of its parameter, is cut into blocks of 1,024 elements; the powers
// of a block are added in float64, element i to lane i mod 16, and the lanes as a balanced tree;
// then the blocks are added one after another, in the order of the parameters. (Powers other than
// 1, 2 and infinity are the C library's.) It reads the gradients once.
//
// With DistributedDataParallel call these after the backward pass: every rank has the same
// gradients then, and so the same norm, also where the optimizer is divided among ranks. Where
// gradients are divided too (fully_shard.h), give the optimizer: each rank reads its part, and the
// norms are collective. The bits are those of whole gradients.
//
// Where the model is divided among ranks (Optimizer::set_model_parts), give the optimizer too: the
// norm is of the whole model, each rank's sum added in rank order. Its bits then depend on how the
// model is divided.
//
// Parameters without a gradient do not count; a tensor that is given twice counts once. Errors:
// kInvalid for gradients that are not dense float32, bfloat16 or float16 tensors on the CPU, for
// parameters whose gradients are divided, and for norms over parameters that are known to be one
// rank's share of a model (training/tensor/tensor_marks.h) of which the optimizer has not been
// told. Thread safety: none.

#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

struct ClipOptions {
  double norm_type = 2;             // above 0, also infinity
  bool error_if_nonfinite = false;  // Error(kInvalid) names the first such parameter
};

// The norm of all gradients as if they were one vector; nothing is changed.
double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2);
double grad_norm(const Optimizer& optimizer, double norm_type = 2);

// Multiplies the gradients by max_norm / (norm + 1e-6) where that is below 1. Returns the norm
// before. A norm that is not finite makes all gradients 0 or NaN, as in PyTorch, unless
// `error_if_nonfinite` leaves them and throws.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                      const ClipOptions& options = {});
double clip_grad_norm(const Optimizer& optimizer, double max_norm, const ClipOptions& options = {});

// Brings each element into [-clip_value, clip_value]; NaN stays.
void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);
void clip_grad_value(const Optimizer& optimizer, double clip_value);

}  // namespace paceline::optim
