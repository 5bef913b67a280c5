#include "paceline/models/layers.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

namespace paceline::models {

torch::nn::AnyModule plain_linear(const torch::nn::LinearOptions& options) {
  return torch::nn::AnyModule(torch::nn::Linear(options));
}

torch::nn::AnyModule batch_norm_2d(std::int64_t channels) {
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}

}  // namespace paceline::models
