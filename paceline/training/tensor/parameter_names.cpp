#include "paceline/training/tensor/parameter_names.h"

#include <torch/csrc/autograd/variable.h>

namespace paceline {

void name_parameters(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().name().empty()) torch::autograd::impl::set_name(item.value(), item.key());
  }
}

}  // namespace paceline
