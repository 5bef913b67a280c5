#include "paceline/train/evaluate.h"

#include <array>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>

#include "paceline/core/check.h"

namespace paceline::train {

Evaluation evaluate(ProcessGroup& group, data::DataLoader& loader,
                    const std::function<at::Tensor(const at::Tensor& images)>& forward) {
  const at::NoGradGuard no_grad;
  std::array<double, 3> sums{};  // loss, correct, samples: exact in float64 far beyond any data set
  loader.begin_epoch(0);
  while (const auto batch = loader.next()) {
    const at::Tensor logits = forward(batch->data);
    const double size = static_cast<double>(batch->target.size(0));
    sums[0] += torch::nn::functional::cross_entropy(logits, batch->target).item<double>() * size;
    sums[1] += static_cast<double>(logits.argmax(1).eq(batch->target).sum().item<std::int64_t>());
    sums[2] += size;
  }
  group.all_reduce(std::span(sums));
  check(sums[2] > 0, "rank {}: evaluate: there is no sample on any rank", group.rank());
  return {sums[0] / sums[2], sums[1] / sums[2], static_cast<std::int64_t>(sums[2])};
}

}  // namespace paceline::train
