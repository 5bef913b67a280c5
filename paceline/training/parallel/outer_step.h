#pragma once

// Parts of low communication that learners and their server share: updates as they are sent, and
// the outer step.
//
// Thread safety: pure functions of tensors that nobody else uses meanwhile.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace paceline {

enum class WirePrecision { kFloat32, kBfloat16, kInt8 };

namespace detail {

inline constexpr std::int64_t kOuterBlock = 256;  // elements with one scale

// Requires: float32 [n], n a multiple of kOuterBlock. Int8 is [n / 256, 260] bytes: 256 elements
// and a float32 scale for each block. Float32 is the tensor itself.
at::Tensor encode_update(const at::Tensor& values, WirePrecision wire);
// float32 [n].
at::Tensor decode_update(const at::Tensor& payload, WirePrecision wire);

// SGD with Nesterov momentum on the mean difference, in place.
void take_outer_step(const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& mean,
                     double lr, double momentum_factor);

}  // namespace detail
}  // namespace paceline
