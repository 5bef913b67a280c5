#include "paceline/training/parallel/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

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

void ShardSum::add(const at::Tensor& gradients, bool may_keep) {
  const at::NoGradGuard no_grad;
  std::size_t level = 0;
  for (; (count_ >> level & 1) != 0; ++level)
    levels_[level].add_(level == 0 ? gradients : levels_[level - 1]);
  if (level == levels_.size()) levels_.emplace_back();
  if (level > 0) {
    std::swap(levels_[level], levels_[level - 1]);
  } else if (may_keep) {
    levels_[0] = gradients;
  } else if (levels_[0].defined()) {
    levels_[0].copy_(gradients);
  } else {
    levels_[0] = gradients.clone();
  }
  ++count_;
}

void ShardSum::finish(const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    if ((count_ >> level & 1) != 0) gradients.add_(levels_[level]);
  }
  count_ = 0;
}

}  // namespace paceline
