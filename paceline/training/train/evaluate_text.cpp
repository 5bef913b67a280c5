#include "paceline/training/train/evaluate_text.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::train {

double TextEvaluation::perplexity() const { return std::exp(loss); }

TextEvaluation evaluate_text(ProcessGroup& group, data::DataLoader& loader,
                             const CountedLoss& loss) {
  const at::NoGradGuard no_grad;
  std::array<double, 2> sums{};  // loss, tokens: exact in float64 far beyond any text
  loader.begin_epoch(0);
  while (const auto batch = loader.next()) {
    sums[0] += loss.sum(*batch).item<double>();
    sums[1] += loss.count(*batch);
  }
  group.all_reduce(std::span(sums));
  check(sums[1] > 0, "{}: evaluate_text: no rank has a token that counts", group.self());
  return {sums[0] / sums[1], static_cast<std::int64_t>(sums[1])};
}

TestResult test_result(const TextEvaluation& evaluation) {
  const double perplexity = evaluation.perplexity();
  return {
      .loss = evaluation.loss,
      .summary = fmt::format("test perplexity {:.2f}, loss {:.4f}", perplexity, evaluation.loss),
      .values = {{"perplexity", perplexity}},
      .rows = {{"test perplexity", fmt::format("{:.2f} of {} tokens (loss {:.4f})", perplexity,
                                               evaluation.tokens, evaluation.loss)}}};
}

}  // namespace paceline::train
