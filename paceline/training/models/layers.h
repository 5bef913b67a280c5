#pragma once

// The layers from which a model is built. A model's constructor takes a `Layers`, as torchvision's
// models take a norm_layer, so that a program can replace a kind of layer everywhere: BatchNorm by
// SyncBatchNorm (training/parallel/sync_batch_norm.h) or by GroupNorm, linear layers by layers that
// are divided among ranks (training/tensor_parallel/tensor_parallel_layers.h). The models
// themselves do not depend on ranks.
//
//   models::ResNet model({.depth = 18}, {.norm = paceline::sync_batch_norm(group)});
//
// A function that makes a layer returns a new one on each call; the layer's forward() takes one
// tensor and returns one. clone() of the model works only with layers that are
// torch::nn::Cloneable.
//
// A transformer has *branches*: a first linear layer computes inner features, a last linear layer
// combines them, and between the two, each block of features (a head of attention, or a single
// feature of the MLP) is computed independently. So a first layer may compute fewer blocks than
// requested if the last layer of the branch adds the contributions of the missing blocks.
//
// Thread safety: a `Layers` is as safe as the functions in it; the functions of this file have no
// state.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/pimpl.h>

namespace paceline {

using StateDict = std::map<std::string, at::Tensor>;

// The module's parameters and buffers themselves, not copies.
StateDict weights_of(const torch::nn::Module& module);
// For LibTorch's module holders (TORCH_MODULE).
template <class Contained>
StateDict weights_of(const torch::nn::ModuleHolder<Contained>& holder) {
  return weights_of(*holder);
}

}  // namespace paceline

namespace paceline::models {

// A branch's inner features: consecutive kinds, each with a number of blocks of `width` features.
struct InnerFeatures {
  std::string block = "features";    // the name of the blocks in messages
  std::int64_t width = 1;            // features of a block
  std::vector<std::int64_t> counts;  // blocks of each kind
};

struct Layers {
  using Linear = std::function<torch::nn::AnyModule(const torch::nn::LinearOptions& options)>;
  using Dropout = std::function<at::Tensor(const at::Tensor& input, double p, bool is_training)>;

  // The default layers: LibTorch's, with products that may be computed by other code (Linear,
  // below).
  static torch::nn::AnyModule plain_linear(const torch::nn::LinearOptions& options);
  static torch::nn::AnyModule batch_norm_2d(std::int64_t channels);
  static at::Tensor plain_dropout(const at::Tensor& input, double p, bool is_training);
  static torch::nn::AnyModule plain_layer_norm(const torch::nn::LayerNormOptions& options);
  static torch::nn::AnyModule plain_embedding(const torch::nn::EmbeddingOptions& options);
  static at::Tensor plain_logits(const at::Tensor& states, const at::Tensor& weight,
                                 const at::Tensor& bias);

  Linear linear = plain_linear;
  // Normalises feature maps [N, channels, height, width].
  std::function<torch::nn::AnyModule(std::int64_t channels)> norm = batch_norm_2d;
  // paceline::dropout (training/tensor/random.h) draws from the rank's own generator, which a
  // DataLoader seeds for each logical shard.
  Dropout dropout = plain_dropout;

  // The members below are for transformers.

  // The first and the last layer of a branch. Empty: `linear` makes them.
  std::function<torch::nn::AnyModule(const torch::nn::LinearOptions& options,
                                     const InnerFeatures& inner)>
      column_linear = {};
  std::function<torch::nn::AnyModule(const torch::nn::LinearOptions& options,
                                     const InnerFeatures& inner)>
      row_linear = {};
  // Dropout between the first and the last layer of a branch. Empty: `dropout`.
  Dropout inner_dropout = {};
  std::function<torch::nn::AnyModule(const torch::nn::LayerNormOptions& options)> layer_norm =
      plain_layer_norm;
  // Embeds tokens. Its parameter "weight" is also the weight of the last layer: `logits` takes the
  // states [N, T, width], that weight, and a bias [vocabulary] or an undefined tensor.
  std::function<torch::nn::AnyModule(const torch::nn::EmbeddingOptions& options)> embedding =
      plain_embedding;
  std::function<at::Tensor(const at::Tensor& states, const at::Tensor& weight,
                           const at::Tensor& bias)>
      logits = plain_logits;
  // Maps the embedded tokens [N, T, width] to the states on which all later layers before `logits`
  // work. The states may have fewer positions if column_linear, row_linear and logits support that.
  // Empty: the states are the embedded tokens.
  std::function<at::Tensor(const at::Tensor& states)> spread = {};
  // Throws on every rank that shares the layers unless all these ranks pass the same description of
  // their next call. Empty: no ranks share the layers.
  std::function<void(const std::string& next_call)> require_same = {};

  torch::nn::AnyModule make_first(const torch::nn::LinearOptions& options,
                                  const InnerFeatures& inner) const {
    return column_linear ? column_linear(options, inner) : linear(options);
  }
  torch::nn::AnyModule make_last(const torch::nn::LinearOptions& options,
                                 const InnerFeatures& inner) const {
    return row_linear ? row_linear(options, inner) : linear(options);
  }
  at::Tensor drop_inner(const at::Tensor& input, double p, bool is_training) const {
    return (inner_dropout ? inner_dropout : dropout)(input, p, is_training);
  }
  at::Tensor spread_out(const at::Tensor& states) const { return spread ? spread(states) : states; }
};

// torch::nn::Linear and its matrix product, as fast as this processor allows:
//
// - A few rows without gradients: generation computes one token after another, and each token reads
//   every weight once. LibTorch's product of so few rows reaches less than half of the memory
//   bandwidth.
// - If LibTorch uses MKL on a processor that is not from Intel: oneDNN is twice as fast.
//
// All other products use LibTorch.
//
// Thread safety: same as torch::nn::Linear.
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(Linear);

}  // namespace paceline::models
