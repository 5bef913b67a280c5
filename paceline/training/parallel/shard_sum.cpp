#include "paceline/training/parallel/shard_sum.h"

#include <utility>

#include <ATen/ATen.h>

namespace paceline {

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
