#pragma once

// Exact evaluation over all ranks: every sample counts once, whatever the number of ranks.

#include <functional>

#include <ATen/core/Tensor.h>

#include "paceline/collectives/group/process_group.h"
#include "paceline/data/data_loader.h"

namespace paceline::train {

struct Evaluation {
  double loss = 0;      // mean cross entropy
  double accuracy = 0;  // share of samples whose largest logit is their label, 0 to 1
  std::int64_t samples = 0;
};

// Collective. `forward` gives logits [B, classes]. Requires: `loader` gives this rank's share
// (data::evaluation_indices). No gradients are kept; the caller sets the module to eval() if it has
// layers that care. Error(kInvalid) when no rank has a sample.
Evaluation evaluate(ProcessGroup& group, data::DataLoader& loader,
                    const std::function<at::Tensor(const at::Tensor& images)>& forward);

}  // namespace paceline::train
