#pragma once

// Names of parameters, kept with the tensors, so that an error can tell which one it is about
// wherever it is found: at::Tensor::name().
//
// Thread safety: none.

#include <torch/nn/module.h>

namespace paceline {

// Each parameter that has no name gets its first one in the module, "fc1.weight".
void name_parameters(const torch::nn::Module& module);

}  // namespace paceline
