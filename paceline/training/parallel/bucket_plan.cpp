#include "paceline/training/parallel/bucket_plan.h"

#include <algorithm>

namespace paceline {

std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters,
                                     const std::vector<std::size_t>& order,
                                     const BucketLimits& limits) {
  std::vector<BucketPlan> closed;
  std::vector<BucketPlan> open;  // at most one per type
  for (const std::size_t i : order) {
    const auto& parameter = parameters[i];
    const auto type = parameter.scalar_type();
    if (parameter.nbytes() >= limits.alone_bytes) {
      closed.push_back({FlatLayout({parameter}, 1), {i}, true});
      continue;
    }
    const auto has_type = [type](const auto& bucket) { return bucket.layout.type() == type; };
    auto bucket = std::find_if(open.begin(), open.end(), has_type);
    if (bucket == open.end()) bucket = open.insert(open.end(), BucketPlan{FlatLayout(type), {}});
    bucket->parameters.push_back(i);
    bucket->layout.append(parameter.numel());
    const bool is_first = std::none_of(closed.begin(), closed.end(), [&](const auto& other) {
      return has_type(other) && !other.is_alone;
    });
    if (static_cast<std::size_t>(bucket->layout.count()) * parameter.element_size() >=
        (is_first ? limits.first_bytes : limits.cap_bytes)) {
      closed.push_back(std::move(*bucket));
      open.erase(bucket);
    }
  }
  for (auto& bucket : open) closed.push_back(std::move(bucket));
  return closed;
}

}  // namespace paceline
