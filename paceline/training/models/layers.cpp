#include "paceline/training/models/layers.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "paceline/training/models/linear.h"

namespace paceline::models {

torch::nn::AnyModule plain_linear(const torch::nn::LinearOptions& options) {
  return torch::nn::AnyModule(Linear(options));
}

torch::nn::AnyModule batch_norm_2d(std::int64_t channels) {
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}

at::Tensor plain_dropout(const at::Tensor& input, double p, bool is_training) {
  return at::dropout(input, p, is_training);
}

torch::nn::AnyModule plain_layer_norm(const torch::nn::LayerNormOptions& options) {
  return torch::nn::AnyModule(torch::nn::LayerNorm(options));
}

torch::nn::AnyModule plain_embedding(const torch::nn::EmbeddingOptions& options) {
  return torch::nn::AnyModule(torch::nn::Embedding(options));
}

at::Tensor weight_of(const torch::nn::AnyModule& layer) {
  return layer.ptr()->named_parameters(/*recurse=*/false)["weight"];
}

}  // namespace paceline::models
