#pragma once

// The product of a linear layer.
//
// Thread safety: as at::linear().

#include <ATen/core/Tensor.h>

namespace paceline::models {

// [..., in_features], [out_features, in_features], [out_features] or undefined -> [...,
// out_features]: equals at::linear except for rounding, with gradients. Float32 products outside of
// autocast may be computed by code other than LibTorch's, depending on the sizes, the machine and
// the gradient mode. For up to 8 rows without gradients, a row's result does not depend on the
// other rows.
at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight,
                        const at::Tensor& bias = {});

}  // namespace paceline::models
