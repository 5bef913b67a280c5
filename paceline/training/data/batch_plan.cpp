#include "paceline/training/data/batch_plan.h"

#include <algorithm>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/logical_shards.h"

namespace paceline::data {
namespace {

using Indices = std::vector<std::int64_t>;

// The share of a rank or of a shard as batches, as even as can be; `step` is what they have in
// common.
void add_share(std::vector<PlannedBatch>& plan, const PlannedBatch& step, const Indices& share,
               double weight_of_sample, std::int64_t micro_size) {
  const auto size = static_cast<std::int64_t>(share.size());
  const std::int64_t parts = micro_size > 0 ? (size + micro_size - 1) / micro_size : 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto begin = part * size / parts, end = (part + 1) * size / parts;
    PlannedBatch batch = step;
    batch.indices = {share.begin() + begin, share.begin() + end};
    batch.weight = weight_of_sample * static_cast<double>(end - begin);
    plan.push_back(std::move(batch));
  }
}

}  // namespace

std::vector<PlannedBatch> plan_batches(const Indices& indices, std::int64_t consumed,
                                       const BatchSplit& split) {
  std::vector<PlannedBatch> plan;
  const auto size = static_cast<std::int64_t>(indices.size());
  for (std::int64_t begin = 0; begin < size; begin += split.size) {
    const std::int64_t end = std::min(size, begin + split.size);
    if (split.drop_last && end - begin < split.size) break;
    plan.push_back({.indices = {indices.begin() + begin, indices.begin() + end},
                    .consumed = consumed + end * split.num_ranks});
  }
  return plan;
}

std::vector<PlannedBatch> plan_whole_batches(const Indices& order, std::int64_t consumed,
                                             const BatchSplit& split) {
  std::vector<PlannedBatch> plan;
  const std::int64_t count = std::ssize(order) / split.size;
  if (consumed >= count * split.size) return plan;
  check(consumed % split.size == 0,
        "{} samples of the epoch are consumed, which are no whole batches of {}: continue with the "
        "batch size that the epoch began with",
        consumed, split.size);
  for (std::int64_t first = consumed / split.size; first < count; first += split.num_ranks) {
    if (split.drop_last && first + split.num_ranks > count) break;
    const auto begin = order.begin() + (first + split.rank) % count * split.size;
    plan.push_back({.indices = {begin, begin + split.size},
                    .consumed = (first + split.num_ranks) * split.size});
  }
  return plan;
}

std::vector<PlannedBatch> plan_global_batches(const Indices& order, std::int64_t consumed,
                                              const BatchSplit& split) {
  const bool in_shards = split.num_shards > 0;
  const std::int64_t num_shares = in_shards ? split.num_shards : split.num_ranks;
  const ShardBlock own = in_shards ? shards_of(split.num_shards, split.num_ranks, split.rank)
                                   : ShardBlock{split.rank, 1};
  std::vector<PlannedBatch> plan;
  const auto size = static_cast<std::int64_t>(order.size());
  for (std::int64_t begin = consumed; begin < size; begin += split.size) {
    const std::int64_t end = std::min(size, begin + split.size);
    if (split.drop_last && end - begin < split.size) break;
    for (std::int64_t turn = own.first; turn < own.first + own.count; ++turn) {
      Indices share;
      for (std::int64_t place = begin + turn; place < end; place += num_shares)
        share.push_back(order[static_cast<std::size_t>(place)]);
      const double weight =
          share.empty() ? 0 : static_cast<double>(num_shares) / static_cast<double>(end - begin);
      if (share.empty()) share = {order[static_cast<std::size_t>(begin)]};
      const PlannedBatch step{
          .ends_step = false, .consumed = end, .position = begin, .shard = in_shards ? turn : -1};
      add_share(plan, step, share, weight, split.micro_size);
    }
    plan.back().ends_step = true;
  }
  return plan;
}

}  // namespace paceline::data
