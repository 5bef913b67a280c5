#pragma once

// The parameters of a model, with the parts of divided layers.
//
// Thread safety: the functions only read the modules.

#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include "paceline/training/models/divided_layer.h"

namespace paceline::models {

// The layer's own parameter "weight". Do not keep the tensor: a clone of the model has a different
// one.
at::Tensor weight_of(const torch::nn::AnyModule& layer);

using ParameterVisitor = std::function<void(const std::string& name, at::Tensor& parameter,
                                            const std::optional<Division>& division)>;
// Visits all parameters with their full names, in the order of named_parameters().
void visit_parameters(const torch::nn::Module& module, const ParameterVisitor& visitor);

}  // namespace paceline::models
