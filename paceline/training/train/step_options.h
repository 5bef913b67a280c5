#pragma once

// The settings of a TrainingRun's step besides those of the optimizer.
//
// Thread safety: a value.

#include <cstdint>
#include <string>

namespace paceline::train {

struct StepOptions {
  std::string schedule = "constant";  // or step, cosine, one-cycle, plateau
  std::int64_t warmup_steps = 0;      // for cosine (0: none) and one-cycle (0: 30%)
  std::int64_t schedule_steps = 0;    // steps of the whole schedule; 0: those of the run
  // For step: the number of steps after which the rate becomes a tenth; 0: a third of the
  // schedule's steps.
  std::int64_t rate_every = 0;
  double clip_norm = 0;  // 0: gradients are not clipped by norm
  double clip_value = 0;
  bool scales_loss = false;  // for float16 gradients (GradScaler)
  double ema = 0;            // decay of the average of the weights; 0: no average
};

}  // namespace paceline::train
