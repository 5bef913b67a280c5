#pragma once

// The layers that a model is built from. A model's constructor takes a `Layers`, as torchvision's
// models take a norm_layer, so that a program can replace a kind of layer everywhere: BatchNorm by
// SyncBatchNorm (training/parallel/sync_batch_norm.h) or by GroupNorm, linear layers by those that
// are divided among ranks (training/tensor_parallel/tensor_parallel_layers.h). The models
// themselves stay blind to ranks.
//
//   models::ResNet model({.depth = 18}, {.norm = paceline::sync_batch_norm(group)});
//
// Each call makes a new layer, whose forward() takes one tensor and returns one. Layers that a
// clone() of the model must have, too, are torch::nn::Cloneable.
//
// A transformer has *branches*: a first linear layer makes inner features, a last one joins them,
// and what happens between them happens to each block of features apart (heads of attention, single
// features of the MLP). So a first layer may make fewer blocks than asked for, if the last layer of
// the branch adds up what is missing.
//
// Thread safety: that of the functions it holds; the ones here have no state.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/options/normalization.h>

#include "paceline/training/models/linear.h"

namespace paceline::models {

// models::Linear (linear.h).
torch::nn::AnyModule plain_linear(const torch::nn::LinearOptions& options);
// torch::nn::BatchNorm2d of so many channels, with its default options.
torch::nn::AnyModule batch_norm_2d(std::int64_t channels);
// torch::dropout.
at::Tensor plain_dropout(const at::Tensor& input, double p, bool is_training);
// torch::nn::LayerNorm, torch::nn::Embedding.
torch::nn::AnyModule plain_layer_norm(const torch::nn::LayerNormOptions& options);
torch::nn::AnyModule plain_embedding(const torch::nn::EmbeddingOptions& options);

// A branch's inner features: kinds that follow each other, each of a number of blocks of `width`.
struct InnerFeatures {
  std::string block = "features";    // what messages call the blocks
  std::int64_t width = 1;            // of a block
  std::vector<std::int64_t> counts;  // blocks of each kind
};

struct Layers {
  using Linear = std::function<torch::nn::AnyModule(const torch::nn::LinearOptions& options)>;
  using Dropout = std::function<at::Tensor(const at::Tensor& input, double p, bool is_training)>;

  Linear linear = plain_linear;
  // Of feature maps [N, channels, height, width].
  std::function<torch::nn::AnyModule(std::int64_t channels)> norm = batch_norm_2d;
  // paceline::dropout (training/tensor/random.h) draws numbers of each rank and logical shard.
  Dropout dropout = plain_dropout;

  // What follows is for transformers.

  // The first and the last layer of a branch; empty: `linear`.
  std::function<torch::nn::AnyModule(const torch::nn::LinearOptions& options,
                                     const InnerFeatures& inner)>
      first_of_branch = {};
  std::function<torch::nn::AnyModule(const torch::nn::LinearOptions& options,
                                     const InnerFeatures& inner)>
      last_of_branch = {};
  // Between them; empty: `dropout`.
  Dropout inner_dropout = {};
  std::function<torch::nn::AnyModule(const torch::nn::LayerNormOptions& options)> layer_norm =
      plain_layer_norm;
  // Of tokens. Its parameter "weight" is also the last layer's, which `logits` computes from the
  // states [N, T, width], that weight, and a bias [vocabulary] or none.
  std::function<torch::nn::AnyModule(const torch::nn::EmbeddingOptions& options)> embedding =
      plain_embedding;
  std::function<at::Tensor(const at::Tensor& states, const at::Tensor& weight,
                           const at::Tensor& bias)>
      logits = models::apply_linear;
  // Of the embedded tokens [N, T, width]: everything up to `logits` works on what it returns, which
  // may have fewer positions if first_of_branch, last_of_branch and logits know; empty: the input.
  std::function<at::Tensor(const at::Tensor& states)> spread = {};
  // Throws on every rank that shares the layers unless all ranks describe alike what they are about
  // to do. Empty: no ranks share them.
  std::function<void(const std::string& doing)> require_same = {};

  torch::nn::AnyModule make_first(const torch::nn::LinearOptions& options,
                                  const InnerFeatures& inner) const {
    return first_of_branch ? first_of_branch(options, inner) : linear(options);
  }
  torch::nn::AnyModule make_last(const torch::nn::LinearOptions& options,
                                 const InnerFeatures& inner) const {
    return last_of_branch ? last_of_branch(options, inner) : linear(options);
  }
  at::Tensor drop_inner(const at::Tensor& input, double p, bool is_training) const {
    return (inner_dropout ? inner_dropout : dropout)(input, p, is_training);
  }
  at::Tensor spread_out(const at::Tensor& states) const { return spread ? spread(states) : states; }
};

// The layer's own parameter "weight". A copy of the tensor's handle must not be kept: a clone of
// the model has another.
at::Tensor weight_of(const torch::nn::AnyModule& layer);

// A layer of which a model has a part: which part of the whole layer's weights it holds. Data that
// knows of no ranks: a number of parts, and the number of one. Along one dimension a weight is a
// list of sections, each of which is cut into equal parts; the weight that makes queries, keys and
// values has three.
//
//   sections {4, 2}, part 1 of 2:   whole  a b c d | e f     here  c d | f
//
// Thread safety: pure functions.

struct Division {
  std::int64_t dim = 0;
  std::vector<std::int64_t> sections =
      {};  // lengths along `dim` in the whole; `parts` divides each
  std::int64_t parts = 1, part = 0;

  std::vector<std::int64_t> whole_sizes(at::IntArrayRef part_sizes) const;
  // A copy. Requires: `whole` has the sections' length along `dim`.
  at::Tensor part_of(const at::Tensor& whole) const;
  // The whole from all parts, in order: the inverse of part_of().
  at::Tensor joined(const std::vector<at::Tensor>& all_parts) const;
};

// What a layer that holds a part of its weights implements beside torch::nn::Module.
class DividedLayer {
 public:
  virtual ~DividedLayer() = default;
  // Of its own parameter with this name; nothing: the parameter is whole.
  virtual std::optional<Division> division_of(const std::string& parameter) const = 0;
};

using ParameterVisitor = std::function<void(const std::string& name, at::Tensor& parameter,
                                            const std::optional<Division>& division)>;
// All parameters with their full names, in the order of named_parameters().
void visit_parameters(const torch::nn::Module& module, const ParameterVisitor& visitor);

}  // namespace paceline::models
