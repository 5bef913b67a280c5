#pragma once

// Exact evaluation of a language model over all ranks: every token that counts does so once,
// whatever the number of ranks and however the text is cut into batches.
//
//   const auto loss = [&](const data::Batch& batch) {
//     return models::next_token_loss(model(batch.data), batch.target);
//   };
//   const auto found = train::evaluate_text(*group, loader, train::over_all_targets(loss));

#include <cstdint>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/train/counted_loss.h"
#include "paceline/training/train/test_result.h"

namespace paceline::train {

struct TextEvaluation {
  double loss = 0;          // mean cross entropy of a token, in nats
  std::int64_t tokens = 0;  // that count

  // How many equally likely tokens would be as hard to predict.
  double perplexity() const;
};

// Collective. Requires: `loader` gives this rank's share (data::evaluation_indices). No gradients
// are kept; the caller sets the module to eval(). Error(kInvalid) when no rank has a token that
// counts.
TextEvaluation evaluate_text(ProcessGroup& group, data::DataLoader& loader,
                             const CountedLoss& loss);

// "test perplexity 12.18, loss 2.5000".
TestResult test_result(const TextEvaluation& evaluation);

}  // namespace paceline::train
