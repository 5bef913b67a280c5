#pragma once

// Exact evaluation of a classifier over all ranks: every sample counts once, whatever the number of
// ranks.

#include <functional>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/train/test_result.h"

namespace paceline::train {

struct Evaluation {
  double loss = 0;           // mean cross entropy
  double accuracy = 0;       // share of samples whose largest logit is their label, 0 to 1
  double top5_accuracy = 0;  // share of samples whose label is among their five largest logits
  std::int64_t samples = 0;
};

// Collective. `forward` gives logits [B, classes]. Requires: `loader` gives this rank's share
// (data::evaluation_indices). No gradients are kept; the caller sets the module to eval() if it has
// layers that care. Error(kInvalid) when no rank has a sample, and as require_labels().
Evaluation evaluate(ProcessGroup& group, data::DataLoader& loader,
                    const std::function<at::Tensor(const at::Tensor& images)>& forward);

// Error(kInvalid) that names the sample of `dataset` for a label (int64 [B]) that is not in
// [0, classes). Labels of another type, such as soft ones, pass.
void require_labels(const data::Batch& batch, std::int64_t classes, const std::string& dataset);

// "test accuracy 90.12%, loss 0.2750, top-5 99.31%".
TestResult test_result(const Evaluation& evaluation);

}  // namespace paceline::train
