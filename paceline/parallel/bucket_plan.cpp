#include "paceline/parallel/bucket_plan.h"

#include <algorithm>

namespace paceline {
namespace {

constexpr std::size_t kCacheLine = 64;

}  // namespace

std::size_t whole_lines(std::size_t count, at::ScalarType type) {
  const std::size_t line = kCacheLine / c10::elementSize(type);
  return (count + line - 1) / line * line;
}

std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters,
                                     const std::vector<std::size_t>& order,
                                     const BucketLimits& limits) {
  std::vector<BucketPlan> closed;
  std::vector<BucketPlan> open;  // at most one per type
  for (const std::size_t i : order) {
    const auto& parameter = parameters[i];
    const auto type = parameter.scalar_type();
    if (parameter.nbytes() >= limits.alone_bytes) {
      closed.push_back({type, {{i, 0}}, static_cast<std::size_t>(parameter.numel()), true});
      continue;
    }
    auto bucket =
        std::find_if(open.begin(), open.end(), [&](const auto& b) { return b.type == type; });
    if (bucket == open.end()) bucket = open.insert(open.end(), BucketPlan{type, {}, 0, false});
    bucket->slots.push_back({i, bucket->count});
    bucket->count += whole_lines(static_cast<std::size_t>(parameter.numel()), type);
    const bool is_first = std::none_of(
        closed.begin(), closed.end(), [&](const auto& b) { return b.type == type && !b.is_alone; });
    if (bucket->count * parameter.element_size() >=
        (is_first ? limits.first_bytes : limits.cap_bytes)) {
      closed.push_back(std::move(*bucket));
      open.erase(bucket);
    }
  }
  for (auto& bucket : open) closed.push_back(std::move(bucket));
  return closed;
}

}  // namespace paceline
