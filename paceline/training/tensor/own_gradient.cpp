#include "paceline/training/tensor/own_gradient.h"

#include <torch/csrc/autograd/variable.h>

namespace paceline {

at::Tensor& own_gradient(const at::Tensor& parameter) {
  return torch::autograd::impl::materialize_autograd_meta(parameter)->grad_;
}

}  // namespace paceline
