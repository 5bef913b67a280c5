#pragma once

// What a step does with its gradients: clips them, takes the optimizer's step, moves the learning
// rate along its schedule and the average of the weights after them.
//
// Ownership: it refers to the optimizer, which must outlive it. Thread safety: none.

#include <memory>
#include <optional>
#include <string>

#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/schedule.h"
#include "paceline/training/train/run_parts.h"

namespace paceline::train {

struct StepOptions {
  std::string schedule = "constant";  // or step, cosine, one-cycle, plateau
  std::int64_t warmup_steps = 0;      // of cosine and one-cycle; 0: none, or 30%
  std::int64_t schedule_steps = 0;    // of the whole schedule; 0: those of the run
  std::int64_t rate_every = 0;        // of step: steps after which the rate becomes a tenth; 0: a
                                      // third of the schedule's
  double clip_norm = 0;               // 0: not clipped
  double clip_value = 0;
  bool scales_loss = false;  // float16's (GradScaler)
  double ema = 0;            // decay of the average of the weights; 0: none
};

class TrainingStep {
 public:
  // `num_steps`: of the whole run. Error(kInvalid) when the schedule is unknown or does not fit,
  // kUnsupported for an average of weights of which a host has one copy.
  TrainingStep(const StepOptions& options, optim::Optimizer& optimizer, std::int64_t num_steps);

  at::Tensor scaled(const at::Tensor& loss) const { return scaler_ ? scaler_->scale(loss) : loss; }
  void take();
  // After each epoch, with the loss of the evaluation.
  void end_epoch(double loss);

  double learning_rate() const { return learning_rate_; }  // of the last step
  bool has_schedule() const { return schedule_ != nullptr; }
  // The number of the schedule's steps, where its rates follow from that number; otherwise 0.
  std::int64_t schedule_steps() const;
  // While it lives, the model has the averaged weights. Null where there are none.
  std::unique_ptr<optim::ExponentialMovingAverage::Swap> averaged_weights();
  // For the Checkpointer.
  RunParts parts();

 private:
  const StepOptions options_;
  optim::Optimizer& optimizer_;
  const std::int64_t num_steps_;               // of the whole run
  std::unique_ptr<optim::Schedule> schedule_;  // null: the rate is constant
  std::optional<optim::GradScaler> scaler_;    // float16's
  std::optional<optim::ExponentialMovingAverage> average_;
  double learning_rate_;
};

}  // namespace paceline::train
