#include "paceline/training/train/counted_loss.h"

#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::train {
CountFunction targets_except(std::int64_t ignored, const at::Tensor& class_weights) {
  return [=](const data::Batch& batch) {
    const at::Tensor counts = batch.target.ne(ignored);
    if (!class_weights.defined()) return static_cast<double>(counts.sum().item<std::int64_t>());
    return class_weights.to(at::kDouble)
        .index({batch.target.masked_select(counts)})
        .sum()
        .item<double>();
  };
}

CountedLoss over_all_targets(LossFunction mean) {
  const auto count = [](const data::Batch& batch) {
    return static_cast<double>(batch.target.numel());
  };
  return {.sum = [mean = std::move(mean),
                  count](const data::Batch& batch) { return mean(batch) * count(batch); },
          .count = count};
}

// Shards are counted apart and added up in their order, so that the weights have the same bits for
// every number of ranks.
void weigh_by_count(std::span<data::Batch> step, const CountFunction& count, ProcessGroup* replicas,
                    std::int64_t logical_shards) {
  const int rank = replicas != nullptr ? replicas->rank() : 0;
  std::optional<double> wrong;
  std::vector<double> counts(logical_shards > 0 ? static_cast<std::size_t>(logical_shards) : 1);
  for (const data::Batch& batch : step) {
    if (batch.weight == 0) continue;
    const auto place = static_cast<std::size_t>(logical_shards > 0 ? batch.shard : 0);
    const double one = count(batch);
    if (!std::isfinite(one) || one < 0) wrong = one;
    counts.at(place) += one;
  }
  if (wrong) counts[0] = std::nan("");  // which all ranks get
  if (replicas != nullptr) replicas->all_reduce(std::span(counts));
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  check(!wrong, "rank {}: the count of a batch's loss is {}; it must be finite and not negative",
        rank, wrong.value_or(0));
  check(std::isfinite(all),
        "rank {}: the count of a batch's loss on another rank is negative or not finite; that rank "
        "says which",
        rank);
  const int ranks = replicas != nullptr ? replicas->world_size() : 1;
  const auto parts = static_cast<double>(logical_shards > 0 ? logical_shards : ranks);
  for (data::Batch& batch : step) {
    if (batch.weight != 0) batch.weight = all > 0 ? parts / all : 0;
  }
}

}  // namespace paceline::train
