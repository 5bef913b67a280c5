#include "paceline/training/tensor_parallel/spread_layers.h"

#include <ostream>
#include <utility>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "paceline/training/models/linear.h"
#include "paceline/training/tensor_parallel/require_parts.h"

namespace paceline {

SpreadLayerNormImpl::SpreadLayerNormImpl(const torch::nn::LayerNormOptions& options, GroupPtr group)
    : options_(options), group_(std::move(group)) {
  tensor_parallel::require_group("SpreadLayerNorm", group_);
  SpreadLayerNormImpl::reset();
}

void SpreadLayerNormImpl::reset() {
  const bool has_weights = options_.elementwise_affine();
  const auto& sizes = options_.normalized_shape();
  weight = register_parameter("weight", has_weights ? at::ones(sizes) : at::Tensor(), has_weights);
  bias = register_parameter("bias", has_weights ? at::zeros(sizes) : at::Tensor(), has_weights);
}

at::Tensor SpreadLayerNormImpl::forward(const at::Tensor& input) {
  const auto& sizes = options_.normalized_shape();
  if (!weight.defined()) return at::layer_norm(input, sizes, {}, {}, options_.eps());
  const at::Tensor both = copy_to_region(group_, at::stack({weight, bias}));
  return at::layer_norm(input, sizes, both[0], both[1], options_.eps());
}

void SpreadLayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << "paceline::SpreadLayerNorm(" << options_.normalized_shape()
         << ", eps=" << options_.eps() << ")";
}

SpreadLinearImpl::SpreadLinearImpl(const torch::nn::LinearOptions& options, GroupPtr group)
    : options_(options), group_(std::move(group)) {
  tensor_parallel::require_group("SpreadLinear", group_);
  SpreadLinearImpl::reset();
}

void SpreadLinearImpl::reset() {
  const torch::nn::Linear whole(options_);
  weight = register_parameter("weight", whole->weight.detach());
  const bool has_bias = options_.bias();
  bias = register_parameter("bias", has_bias ? whole->bias.detach() : at::Tensor(), has_bias);
}

at::Tensor SpreadLinearImpl::forward(const at::Tensor& input) {
  tensor_parallel::require_features("SpreadLinear", *group_, input, options_.in_features());
  return models::apply_linear(input, copy_to_region(group_, weight),
                              bias.defined() ? copy_to_region(group_, bias) : bias);
}

void SpreadLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "paceline::SpreadLinear(in_features=" << options_.in_features()
         << ", out_features=" << options_.out_features() << ")";
}

}  // namespace paceline
