#pragma once

// Functions on layers for the library's own code: the product of a linear layer, and the parameters
// of a model with their divisions (divided_layer.h).
//
// Thread safety: apply_linear() is as safe as at::linear(); the other functions only read the
// modules.

#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include "paceline/training/models/divided_layer.h"

namespace paceline::models {

// The product of a linear layer: [..., in_features], [out_features, in_features], [out_features] or
// undefined -> [..., out_features]. Equals at::linear except for rounding, and has gradients.
// Float32 products outside of autocast may be computed by code other than LibTorch's, depending on
// the sizes, the machine and the gradient mode. For up to 8 rows without gradients, a row's result
// does not depend on the other rows.
at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight,
                        const at::Tensor& bias = {});

// The layer's own parameter "weight". Do not keep the tensor: a clone of the model has a different
// one.
at::Tensor weight_of(const torch::nn::AnyModule& layer);

using ParameterVisitor = std::function<void(const std::string& name, at::Tensor& parameter,
                                            const std::optional<Division>& division)>;
// Visits all parameters with their full names, in the order of named_parameters().
void visit_parameters(const torch::nn::Module& module, const ParameterVisitor& visitor);

}  // namespace paceline::models
