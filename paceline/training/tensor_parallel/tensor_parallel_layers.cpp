#include "paceline/training/tensor_parallel/tensor_parallel_layers.h"

#include <cstdint>
#include <ostream>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/linear.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/logical_shards.h"
#include "paceline/training/autograd/regions.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor/random_state.h"
#include "paceline/training/tensor_parallel/parallel_linear.h"
#include "paceline/training/tensor_parallel/require_parts.h"
#include "paceline/training/tensor_parallel/sequence_parallel.h"
#include "paceline/training/tensor_parallel/vocab_parallel.h"

namespace paceline {

namespace {

using models::InnerFeatures;
using torch::nn::AnyModule;
using torch::nn::LinearOptions;

constexpr std::int64_t kPositions = 1;

at::Tensor parallel_logits(const GroupPtr& group, const TensorParallelOptions& options,
                           const at::Tensor& states, const at::Tensor& weight,
                           const at::Tensor& bias) {
  const at::Tensor whole = options.sequence_parallel
                               ? all_gather_autograd(group, states, kPositions)
                               : copy_to_region(group, states);
  const at::Tensor part = models::apply_linear(
      whole, weight, bias.defined() ? scatter_to_region(group, bias, 0) : bias);
  return options.gather_logits ? gather_from_region(group, part, -1) : part;
}

void require_same(ProcessGroup& group, const std::string& next_call) {
  const auto all = all_gather_object(group, next_call);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    check(all[rank] == all[0],
          "{}: the ranks of a tensor-parallel model must do the same; rank 0: {}; rank {}: {}",
          group.self(), all[0], rank, all[rank]);
  }
}

// Sets layers that have the whole weights on every rank and compute the rank's part of the
// positions.
void spread_positions(models::Layers& layers, const GroupPtr& group) {
  layers.linear = [group](const LinearOptions& linear) {
    return AnyModule(SequenceParallelLinear(linear, group));
  };
  layers.layer_norm = [group](const torch::nn::LayerNormOptions& norm) {
    return AnyModule(SequenceParallelLayerNorm(norm, group));
  };
  layers.dropout = layers.inner_dropout;
  layers.spread = [group](const at::Tensor& states) {
    return scatter_to_region(group, states, kPositions);
  };
}

}  // namespace

models::Layers tensor_parallel_layers(const GroupPtr& group, const TensorParallelOptions& options) {
  tensor_parallel::require_group("tensor_parallel_layers", group);
  models::Layers layers;
  layers.column_linear = [group, options](const LinearOptions& linear, const InnerFeatures& inner) {
    return AnyModule(ColumnParallelLinear(
        linear, group,
        ColumnParallelOptions{.inner = inner,
                              .sequence_parallel_input = options.sequence_parallel}));
  };
  layers.row_linear = [group, options](const LinearOptions& linear, const InnerFeatures& inner) {
    return AnyModule(RowParallelLinear(
        linear, group,
        RowParallelOptions{.inner = inner, .sequence_parallel_output = options.sequence_parallel}));
  };
  layers.embedding = [group](const torch::nn::EmbeddingOptions& embedding) {
    return AnyModule(VocabParallelEmbedding(embedding, group));
  };
  layers.logits = [group, options](const at::Tensor& states, const at::Tensor& weight,
                                   const at::Tensor& bias) {
    return parallel_logits(group, options, states, weight, bias);
  };
  layers.dropout = paceline::dropout;
  layers.inner_dropout = [group](const at::Tensor& input, double p, bool is_training) {
    return sharded_dropout(*group, input, p, is_training);
  };
  layers.require_same = [group](const std::string& next_call) { require_same(*group, next_call); };
  if (options.sequence_parallel) spread_positions(layers, group);
  return layers;
}

SequenceParallelLayerNormImpl::SequenceParallelLayerNormImpl(
    const torch::nn::LayerNormOptions& options, GroupPtr group)
    : options_(options), group_(std::move(group)) {
  tensor_parallel::require_group("SequenceParallelLayerNorm", group_);
  SequenceParallelLayerNormImpl::reset();
}

void SequenceParallelLayerNormImpl::reset() {
  const bool has_weights = options_.elementwise_affine();
  const auto& sizes = options_.normalized_shape();
  weight = register_parameter("weight", has_weights ? at::ones(sizes) : at::Tensor(), has_weights);
  bias = register_parameter("bias", has_weights ? at::zeros(sizes) : at::Tensor(), has_weights);
}

at::Tensor SequenceParallelLayerNormImpl::forward(const at::Tensor& input) {
  const auto& sizes = options_.normalized_shape();
  if (!weight.defined()) return at::layer_norm(input, sizes, {}, {}, options_.eps());
  const at::Tensor both = copy_to_region(group_, at::stack({weight, bias}));
  return at::layer_norm(input, sizes, both[0], both[1], options_.eps());
}

void SequenceParallelLayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << "paceline::SequenceParallelLayerNorm(" << options_.normalized_shape()
         << ", eps=" << options_.eps() << ")";
}

SequenceParallelLinearImpl::SequenceParallelLinearImpl(const torch::nn::LinearOptions& options,
                                                       GroupPtr group)
    : options_(options), group_(std::move(group)) {
  tensor_parallel::require_group("SequenceParallelLinear", group_);
  SequenceParallelLinearImpl::reset();
}

void SequenceParallelLinearImpl::reset() {
  const torch::nn::Linear whole(options_);
  weight = register_parameter("weight", whole->weight.detach());
  const bool has_bias = options_.bias();
  bias = register_parameter("bias", has_bias ? whole->bias.detach() : at::Tensor(), has_bias);
}

at::Tensor SequenceParallelLinearImpl::forward(const at::Tensor& input) {
  tensor_parallel::require_features("SequenceParallelLinear", *group_, input,
                                    options_.in_features());
  return models::apply_linear(input, copy_to_region(group_, weight),
                              bias.defined() ? copy_to_region(group_, bias) : bias);
}

void SequenceParallelLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "paceline::SequenceParallelLinear(in_features=" << options_.in_features()
         << ", out_features=" << options_.out_features() << ")";
}

at::Tensor sharded_dropout(const ProcessGroup& group, const at::Tensor& input, double p,
                           bool is_training) {
  if (group.world_size() == 1) return paceline::dropout(input, p, is_training);
  check(p >= 0 && p < 1, "dropout: the probability {} is not in [0, 1)", p);
  if (!is_training || p == 0) return input;
  const at::Tensor drawn = at::empty({}, at::kLong).random_(rank_generator());
  const auto shared = static_cast<std::uint64_t>(drawn.item<std::int64_t>());
  const auto own = seed_of_shard(shared, /*epoch=*/0, /*position=*/0, group.rank());
  return input * dropout_mask(input, 1 - p, at::detail::createCPUGenerator(own));
}

}  // namespace paceline
