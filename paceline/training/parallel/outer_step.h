#pragma once

// Parts of low communication that learners and their server share: updates as they are sent, and
// the outer step.
//
// Thread safety: pure functions; no other thread may use the tensors meanwhile.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace paceline::detail {

inline constexpr std::int64_t kOuterBlock = 256;  // elements with one scale

// `values`: float32 [n], n a multiple of kOuterBlock. Float32 is the tensor itself; kChar gives
// [n / 256, 260] of kByte: 256 elements and a float32 scale for each block.
at::Tensor encode_update(const at::Tensor& values, at::ScalarType wire);
// float32 [n]. Throws Error(kInvalid) for a tensor that encode_update() does not return.
at::Tensor decode_update(const at::Tensor& payload);

// SGD with Nesterov momentum on the mean difference, in place.
void take_outer_step(const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& mean,
                     double lr, double momentum_factor);

}  // namespace paceline::detail
