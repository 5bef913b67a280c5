#include "paceline/training/tensor_parallel/layers.h"

#include "paceline/engine/collectives/group/objects.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor_parallel/parallel_linear.h"
#include "paceline/training/tensor_parallel/part_dropout.h"
#include "paceline/training/tensor_parallel/require_parts.h"
#include "paceline/training/tensor_parallel/spread_layers.h"
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
  const at::Tensor whole = options.sequence_parallel ? all_gather_own(group, states, kPositions)
                                                     : copy_to_region(group, states);
  const at::Tensor part = models::apply_linear(
      whole, weight, bias.defined() ? scatter_to_region(group, bias, 0) : bias);
  return options.gather_logits ? gather_from_region(group, part, -1) : part;
}

void require_same(ProcessGroup& group, const std::string& doing) {
  const auto all = all_gather_object(group, doing);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    check(all[rank] == all[0],
          "{}: the ranks of a tensor-parallel model must do the same; rank 0: {}; rank {}: {}",
          group.self(), all[0], rank, all[rank]);
  }
}

// Weights that every rank has, positions of which each has a part.
void spread_positions(models::Layers& layers, const GroupPtr& group) {
  layers.linear = [group](const LinearOptions& linear) {
    return AnyModule(SpreadLinear(linear, group));
  };
  layers.layer_norm = [group](const torch::nn::LayerNormOptions& norm) {
    return AnyModule(SpreadLayerNorm(norm, group));
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
  layers.first_of_branch = [group, options](const LinearOptions& linear,
                                            const InnerFeatures& inner) {
    return AnyModule(ColumnParallelLinear(
        linear, group,
        ColumnParallelOptions{.inner = inner, .spread_input = options.sequence_parallel}));
  };
  layers.last_of_branch = [group, options](const LinearOptions& linear,
                                           const InnerFeatures& inner) {
    return AnyModule(RowParallelLinear(
        linear, group,
        RowParallelOptions{.inner = inner, .spread_output = options.sequence_parallel}));
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
    return part_dropout(*group, input, p, is_training);
  };
  layers.require_same = [group](const std::string& doing) { require_same(*group, doing); };
  if (options.sequence_parallel) spread_positions(layers, group);
  return layers;
}

}  // namespace paceline
