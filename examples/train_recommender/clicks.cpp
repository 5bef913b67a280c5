#include "examples/train_recommender/clicks.h"

namespace train_recommender {

Clicks Clicks::select(const at::Tensor& indices) const {
  return {dense.index_select(0, indices), ids.index_select(0, indices),
          labels.index_select(0, indices)};
}

double area_under_curve(const at::Tensor& scores, const at::Tensor& labels) {
  const auto [sorted, order] = scores.reshape({-1}).to(at::kDouble).sort();
  const at::Tensor clicked = labels.reshape({-1}).to(at::kDouble).index_select(0, order);
  const auto* const score = sorted.data_ptr<double>();
  const auto* const label = clicked.data_ptr<double>();
  double below = 0, pairs = 0;  // samples without a click so far; pairs in the right order
  const std::int64_t count = sorted.numel();
  for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
    double clicks = 0;  // among samples of equal score
    for (; end < count && score[end] == score[begin]; ++end) clicks += label[end];
    const double others = static_cast<double>(end - begin) - clicks;
    pairs += clicks * (below + others / 2);
    below += others;
  }
  const double all_clicks = clicked.sum().item<double>();
  return all_clicks == 0 || below == 0 ? 0.5 : pairs / (all_clicks * below);
}

}  // namespace train_recommender
