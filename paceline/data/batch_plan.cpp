#include "paceline/data/batch_plan.h"

#include <algorithm>

namespace paceline::data {
namespace {

using Indices = std::vector<std::int64_t>;

// This rank's batches of one step, as even as can be.
void add_step(std::vector<PlannedBatch>& plan, const Indices& share, double weight_of_sample,
              std::int64_t consumed, std::int64_t micro_size) {
  const auto size = static_cast<std::int64_t>(share.size());
  const std::int64_t parts = micro_size > 0 ? (size + micro_size - 1) / micro_size : 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto begin = part * size / parts, end = (part + 1) * size / parts;
    plan.push_back({.indices = {share.begin() + begin, share.begin() + end},
                    .weight = weight_of_sample * static_cast<double>(end - begin),
                    .ends_step = part + 1 == parts,
                    .consumed = consumed});
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

std::vector<PlannedBatch> plan_global_batches(const Indices& order, std::int64_t consumed,
                                              const BatchSplit& split) {
  std::vector<PlannedBatch> plan;
  const auto size = static_cast<std::int64_t>(order.size());
  for (std::int64_t begin = consumed; begin < size; begin += split.size) {
    const std::int64_t end = std::min(size, begin + split.size);
    if (split.drop_last && end - begin < split.size) break;
    Indices share;
    for (std::int64_t place = begin + split.rank; place < end; place += split.num_ranks) {
      share.push_back(order[static_cast<std::size_t>(place)]);
    }
    const double weight = share.empty() ? 0 : split.num_ranks / static_cast<double>(end - begin);
    if (share.empty()) share = {order[static_cast<std::size_t>(begin)]};
    add_step(plan, share, weight, end, split.micro_size);
  }
  return plan;
}

}  // namespace paceline::data
