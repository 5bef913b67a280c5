#include "paceline/models/layers.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

namespace paceline::models {

torch::nn::AnyModule plain_linear(const torch::nn::LinearOptions& options) {
  return torch::nn::AnyModule(torch::nn::Linear(options));
}

torch::nn::AnyModule batch_norm_2d(std::int64_t channels) {
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}

at::Tensor plain_dropout(const at::Tensor& input, double p, bool is_training) {
  return at::dropout(input, p, is_training);
}

}  // namespace paceline::models
