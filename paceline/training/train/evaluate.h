#pragma once

// Exact evaluation of classifiers and language models over all ranks: every sample, or every token
// that counts (CountedLoss), is included once, whatever the number of ranks. The result is in the
// form in which a run prints and logs it.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/train/step_gradients.h"

namespace paceline::train {

// The result of an evaluation of any model. A plain value.
struct TestResult {
  double loss = 0;      // mean over the samples; used by ReduceLROnPlateau
  std::string summary;  // one line, such as "test accuracy 90.12%, loss 0.2750"
  // For metrics: {"accuracy", 0.9012}.
  std::vector<std::pair<std::string, double>> values;
  // For the closing table: {"test accuracy", "90.12% of 10000 images (loss 0.2750)"}.
  std::vector<std::pair<std::string, std::string>> rows;
};

// The result for a classifier.
struct Evaluation {
  double loss = 0;           // mean cross entropy
  double accuracy = 0;       // share of samples whose largest logit is that of their label, 0 to 1
  double top5_accuracy = 0;  // share of samples whose label is among their five largest logits
  std::int64_t samples = 0;

  // For Training::test, with the summary "test accuracy 90.12%, loss 0.2750, top-5 99.31%".
  TestResult test_result() const;
};

// Collective: evaluates a classifier. `forward` must return logits [B, classes]. Requires: `loader`
// returns this rank's share of the samples (data::evaluation_indices). No gradients are kept; the
// caller must set the module to eval() if it has dropout or normalisation. Error(kInvalid) when no
// rank has a sample, for logits of another shape, for labels that are not int64, and for a label
// outside of [0, classes); the message then names the sample.
Evaluation evaluate(GroupRef group, data::DataLoader& loader,
                    const std::function<at::Tensor(const at::Tensor& images)>& forward);

// The result for a language model; it does not depend on how the text is cut into batches.
//
//   const auto loss = [&](const data::Batch& batch) {
//     return models::next_token_loss(model(batch.data), batch.target);
//   };
//   const auto found = train::evaluate_text(group, loader, train::CountedLoss::over_all_targets(loss));
struct TextEvaluation {
  double loss = 0;          // mean cross-entropy of a token, in nats
  std::int64_t tokens = 0;  // the number of tokens that count

  // exp(loss): a choice among this many equally likely tokens would be as hard to predict.
  double perplexity() const;
  // For Training::test, with the summary "test perplexity 12.18, loss 2.5000".
  TestResult test_result() const;
};

// Collective: evaluates a language model. Requires: `loader` returns this rank's share of the
// samples (data::evaluation_indices). No gradients are kept; the caller must set the module to
// eval(). Error(kInvalid) when no rank has a token that counts.
TextEvaluation evaluate_text(GroupRef group, data::DataLoader& loader, const CountedLoss& loss);

}  // namespace paceline::train
