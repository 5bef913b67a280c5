#include "examples/train_cnn/training_step.h"

#include <algorithm>

#include "paceline/core/check.h"
#include "paceline/optim/clip_gradients.h"
#include "paceline/optim/one_cycle_lr.h"

namespace train_cnn {
namespace {

namespace optim = paceline::optim;

std::unique_ptr<optim::Schedule> make_schedule(const Options& options, optim::Optimizer& optimizer,
                                               std::int64_t num_steps) {
  const std::int64_t steps = options.schedule_steps > 0 ? options.schedule_steps : num_steps;
  paceline::check(options.warmup < steps,
                  "--warmup {}: the schedule has {} steps; see --schedule-steps", options.warmup,
                  steps);
  if (options.schedule == "step") {
    const std::int64_t every =
        options.rate_every > 0 ? options.rate_every : std::max<std::int64_t>(steps / 3, 1);
    return std::make_unique<optim::StepLr>(optimizer, optim::StepLrOptions{.step_size = every});
  }
  if (options.schedule == "cosine") {
    return std::make_unique<optim::CosineAnnealingLr>(
        optimizer, optim::CosineAnnealingLrOptions{.t_max = steps - options.warmup,
                                                   .warmup_steps = options.warmup});
  }
  if (options.schedule == "one-cycle") {
    optim::OneCycleLrOptions cycle{
        .max_lr = {options.lr}, .total_steps = steps, .cycle_momentum = optimizer.momentum(0) > 0};
    if (options.warmup > 0)
      cycle.pct_start = static_cast<double>(options.warmup) / static_cast<double>(steps);
    return std::make_unique<optim::OneCycleLr>(optimizer, cycle);
  }
  if (options.schedule == "plateau") {
    return std::make_unique<optim::ReduceLrOnPlateau>(
        optimizer, optim::ReduceLrOnPlateauOptions{.patience = 2});
  }
  return nullptr;
}

}  // namespace

TrainingStep::TrainingStep(const Options& options, optim::Optimizer& optimizer,
                           std::int64_t num_steps)
    : options_(options),
      optimizer_(optimizer),
      schedule_(make_schedule(options, optimizer, num_steps)),
      learning_rate_(optimizer.learning_rate()) {
  if (options.precision == "autocast-fp16") scaler_.emplace();
  if (options.ema > 0) {
    average_.emplace(optimizer.parameters(),
                     optim::ExponentialMovingAverageOptions{.decay = options.ema});
  }
}

void TrainingStep::take() {
  if (scaler_) scaler_->unscale(optimizer_);  // before clipping
  if (options_.clip_norm > 0) optim::clip_grad_norm(optimizer_.parameters(), options_.clip_norm);
  if (options_.clip_value > 0) optim::clip_grad_value(optimizer_.parameters(), options_.clip_value);
  learning_rate_ = optimizer_.learning_rate();
  if (scaler_) {
    scaler_->step(optimizer_);
    scaler_->update();
  } else {
    optimizer_.step();
  }
  if (auto* const by_steps = dynamic_cast<LrSchedule*>(schedule_.get())) by_steps->step();
  if (average_) average_->update();
}

void TrainingStep::end_epoch(double loss) {
  auto* const by_loss = dynamic_cast<optim::ReduceLrOnPlateau*>(schedule_.get());
  if (by_loss != nullptr) by_loss->step(loss);
}

std::unique_ptr<optim::ExponentialMovingAverage::Swap> TrainingStep::averaged_weights() {
  if (!average_ || average_->num_updates() == 0) return nullptr;
  return std::make_unique<optim::ExponentialMovingAverage::Swap>(*average_);
}

paceline::train::RunParts TrainingStep::parts() {
  return {.schedule = schedule_.get(),
          .scaler = scaler_ ? &*scaler_ : nullptr,
          .average = average_ ? &*average_ : nullptr};
}

}  // namespace train_cnn
