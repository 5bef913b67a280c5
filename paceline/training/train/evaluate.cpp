#include "paceline/training/train/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/train/run_report.h"

namespace paceline::train {

std::string table_row(const std::string& name, const std::string& value) {
  return fmt::format("  {:<24}{}\n", name, value);
}

std::string table_of(const TestResult& result) {
  std::string text;
  for (const auto& [name, value] : result.rows) text += table_row(name, value);
  return text;
}

namespace {

// Adds up the ranks' sums with an all-reduce, which error messages call by the name of `function`.
void add_up(ProcessGroup& group, std::span<double> sums, std::string_view function) {
  engine(group).run(
      {.op = Op::kAllReduce, .input = sums, .output = sums, .shape = purpose_of(function)}, {});
}

double count(const at::Tensor& hits) {
  return static_cast<double>(hits.sum().item<std::int64_t>());
}

double count_top5(const at::Tensor& logits, const at::Tensor& labels) {
  const auto most = std::min<std::int64_t>(5, logits.size(1));
  const at::Tensor best = std::get<1>(logits.topk(most, 1));
  return count(best.eq(labels.unsqueeze(1)));
}

}  // namespace

Evaluation evaluate(GroupRef group, data::DataLoader& loader,
                    const std::function<at::Tensor(const at::Tensor& images)>& forward) {
  const at::NoGradGuard no_grad;
  // Loss, top-1 hits, top-5 hits, samples: exact in float64 for counts far beyond any data set.
  std::array<double, 4> sums{};
  for (const data::Batch& batch : loader.epoch(0)) {
    const at::Tensor logits = forward(batch.data);
    check(logits.dim() == 2, "evaluate: the model returned a tensor of shape {}, not [B, classes]",
          c10::str(logits.sizes()));
    check(batch.target.defined() && batch.target.scalar_type() == at::kLong,
          "evaluate: the labels of {} are {}, not int64: store labels.to(torch::kLong)",
          loader.name(), batch.target.defined() ? toString(batch.target.scalar_type()) : "missing");
    require_labels(batch, logits.size(1), loader.name());
    const double size = static_cast<double>(batch.target.size(0));
    sums[0] += torch::nn::functional::cross_entropy(logits, batch.target).item<double>() * size;
    sums[1] += count(logits.argmax(1).eq(batch.target));
    sums[2] += count_top5(logits, batch.target);
    sums[3] += size;
  }
  add_up(*group, sums, kEvaluate);
  const auto [loss, first, first_five, samples] = sums;
  check(samples > 0, "{}: evaluate: there is no sample on any rank", group->self());
  return {loss / samples, first / samples, first_five / samples,
          static_cast<std::int64_t>(samples)};
}

void require_labels(const data::Batch& batch, std::int64_t classes, const std::string& dataset) {
  if (!batch.target.defined() || batch.target.scalar_type() != at::kLong) return;
  const at::Tensor labels = batch.target.cpu().contiguous();  // on a device, this waits
  const auto* const label = labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < labels.numel(); ++i) {
    check(label[i] >= 0 && label[i] < classes,
          "sample {} of {} has the label {}, and the model has {} classes: labels are from 0 to {}",
          batch.indices[static_cast<std::size_t>(i)], dataset, label[i], classes, classes - 1);
  }
}

TestResult Evaluation::test_result() const {
  const double percent = 100 * accuracy, top5 = 100 * top5_accuracy;
  return {.loss = loss,
          .summary =
              fmt::format("test accuracy {:.2f}%, loss {:.4f}, top-5 {:.2f}%", percent, loss, top5),
          .values = {{"accuracy", accuracy}, {"top5_accuracy", top5_accuracy}},
          .rows = {{"test accuracy",
                    fmt::format("{:.2f}% of {} images (loss {:.4f})", percent, samples, loss)},
                   {"top-5 accuracy", fmt::format("{:.2f}%", top5)}}};
}

double TextEvaluation::perplexity() const { return std::exp(loss); }

TextEvaluation evaluate_text(GroupRef group, data::DataLoader& loader, const CountedLoss& loss) {
  const at::NoGradGuard no_grad;
  std::array<double, 2> sums{};  // loss, tokens; counts are exact in float64 far beyond any text
  for (const data::Batch& batch : loader.epoch(0)) {
    sums[0] += loss.sum(batch).item<double>();
    sums[1] += loss.count(batch);
  }
  add_up(*group, sums, kEvaluateText);
  check(sums[1] > 0, "{}: evaluate_text: no rank has a token that counts", group->self());
  return {sums[0] / sums[1], static_cast<std::int64_t>(sums[1])};
}

TestResult TextEvaluation::test_result() const {
  return {.loss = loss,
          .summary = fmt::format("test perplexity {:.2f}, loss {:.4f}", perplexity(), loss),
          .values = {{"perplexity", perplexity()}},
          .rows = {{"test perplexity",
                    fmt::format("{:.2f} of {} tokens (loss {:.4f})", perplexity(), tokens, loss)}}};
}

}  // namespace paceline::train
