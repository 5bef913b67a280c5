#include "paceline/training/pipeline/tied_weights.h"

#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {

TiedWeights::TiedWeights(ProcessGroup& group, std::vector<at::Tensor> own) : own_(std::move(own)) {
  holders_ = group.split(own_.empty() ? -1 : 0, group.rank(), {}, "tied");
  if (own_.empty()) return;
  const auto count = static_cast<std::int64_t>(own_.size());
  const auto most = all_reduce_value(*holders_, count, ReduceOp::kMax);
  const auto least = all_reduce_value(*holders_, count, ReduceOp::kMin);
  check(most == least, "{}: tied weights: {} here, {} to {} on the ranks that have any",
        group.self(), count, least, most);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& weight : own_) broadcast(*holders_, weight.detach(), 0);
}

void TiedWeights::add_gradients() {
  const at::NoGradGuard no_grad;
  for (at::Tensor weight : own_) {
    if (!weight.mutable_grad().defined()) weight.mutable_grad() = at::zeros_like(weight);
    all_reduce(*holders_, weight.mutable_grad());
  }
}

}  // namespace paceline
