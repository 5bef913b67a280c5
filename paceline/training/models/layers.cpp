#include "paceline/training/models/layers.h"

#include <numeric>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layer_functions.h"

namespace paceline {

StateDict weights_of(const torch::nn::Module& module) {
  StateDict tensors;
  for (const auto& parameter : module.named_parameters())
    tensors.emplace(parameter.key(), parameter.value().detach());
  for (const auto& buffer : module.named_buffers())
    tensors.emplace(buffer.key(), buffer.value().detach());
  return tensors;
}

}  // namespace paceline

namespace paceline::models {

torch::nn::AnyModule Layers::plain_linear(const torch::nn::LinearOptions& options) {
  return torch::nn::AnyModule(models::Linear(options));
}

torch::nn::AnyModule Layers::batch_norm_2d(std::int64_t channels) {
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}

at::Tensor Layers::plain_dropout(const at::Tensor& input, double p, bool is_training) {
  return at::dropout(input, p, is_training);
}

torch::nn::AnyModule Layers::plain_layer_norm(const torch::nn::LayerNormOptions& options) {
  return torch::nn::AnyModule(torch::nn::LayerNorm(options));
}

torch::nn::AnyModule Layers::plain_embedding(const torch::nn::EmbeddingOptions& options) {
  return torch::nn::AnyModule(torch::nn::Embedding(options));
}

at::Tensor Layers::plain_logits(const at::Tensor& states, const at::Tensor& weight,
                                const at::Tensor& bias) {
  return apply_linear(states, weight, bias);
}

at::Tensor weight_of(const torch::nn::AnyModule& layer) {
  return layer.ptr()->named_parameters(/*recurse=*/false)["weight"];
}

namespace {

void visit(const torch::nn::Module& module, const std::string& prefix,
           const ParameterVisitor& visitor) {
  const auto* const divided = dynamic_cast<const DividedLayer*>(&module);
  for (auto& parameter : module.named_parameters(/*recurse=*/false)) {
    visitor(prefix + parameter.key(), parameter.value(),
            divided == nullptr ? std::nullopt : divided->division_of(parameter.key()));
  }
  for (const auto& child : module.named_children())
    visit(*child.value(), prefix + child.key() + ".", visitor);
}

}  // namespace

std::vector<std::int64_t> Division::whole_sizes(at::IntArrayRef part_sizes) const {
  std::vector<std::int64_t> sizes = part_sizes.vec();
  sizes[static_cast<std::size_t>(dim)] =
      std::accumulate(sections.begin(), sections.end(), std::int64_t{0});
  return sizes;
}

at::Tensor Division::part_of(const at::Tensor& whole) const {
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  for (const std::int64_t length : sections) {
    pieces.push_back(whole.narrow(dim, begin + part * (length / parts), length / parts));
    begin += length;
  }
  return at::cat(pieces, dim);
}

at::Tensor Division::joined(const std::vector<at::Tensor>& all_parts) const {
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  for (const std::int64_t length : sections) {
    for (const at::Tensor& one : all_parts)
      pieces.push_back(one.narrow(dim, begin, length / parts));
    begin += length / parts;
  }
  return at::cat(pieces, dim);
}

void visit_parameters(const torch::nn::Module& module, const ParameterVisitor& visitor) {
  visit(module, "", visitor);
}

}  // namespace paceline::models
