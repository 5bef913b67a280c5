#pragma once

// What a step does with its gradients, as the flags choose it: clips them, takes the optimizer's
// step, moves the learning rate along its schedule and the average of the weights after them.

#include <memory>
#include <optional>

#include "paceline/optim/exponential_moving_average.h"
#include "paceline/optim/grad_scaler.h"
#include "paceline/optim/lr_schedules.h"
#include "paceline/optim/reduce_lr_on_plateau.h"
#include "paceline/train/run_parts.h"

#include "examples/train_cnn/options.h"

namespace train_cnn {

class TrainingStep {
 public:
  // `num_steps`: of the whole run. Error(kInvalid) when the schedule does not fit them.
  TrainingStep(const Options& options, paceline::optim::Optimizer& optimizer,
               std::int64_t num_steps);

  at::Tensor scaled(const at::Tensor& loss) const { return scaler_ ? scaler_->scale(loss) : loss; }
  void take();
  // After each epoch, with the loss of the evaluation.
  void end_epoch(double loss);

  double learning_rate() const { return learning_rate_; }  // of the last step
  bool has_schedule() const { return schedule_ != nullptr; }
  // While it lives, the model has the averaged weights. Null where there are none.
  std::unique_ptr<paceline::optim::ExponentialMovingAverage::Swap> averaged_weights();
  // For the Checkpointer.
  paceline::train::RunParts parts();

 private:
  using LrSchedule = paceline::optim::LrSchedule;

  const Options options_;
  paceline::optim::Optimizer& optimizer_;
  std::unique_ptr<paceline::optim::Schedule> schedule_;  // null: the rate is constant
  std::optional<paceline::optim::GradScaler> scaler_;    // float16's
  std::optional<paceline::optim::ExponentialMovingAverage> average_;
  double learning_rate_;
};

}  // namespace train_cnn
