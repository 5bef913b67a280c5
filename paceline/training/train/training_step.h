#pragma once

// A program's choices for its training step, with the names that flags use: optimizer,
// communication hook and precision by name, and the step itself with clipping, scaling, schedule
// and average (TrainingStep).
//
// Thread safety: the functions are pure; a TrainingStep is not thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/grad_scaler.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/training_run.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

struct OptimizerChoice {
  std::string name = "adam";  // or adamw, sgd, lamb, lars
  double lr = 1e-3;
  double momentum = 0.9;                    // for sgd and lars
  std::optional<double> weight_decay = {};  // nullopt: 0.01 for adamw, 0 for the others
};
// Makes an optimizer by name. Error(kInvalid) for an unknown name; errors of the optimizers.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerChoice& choice,
                                                 const std::vector<at::Tensor>& parameters);

struct HookChoice {
  std::string name = "none";  // or bf16, fp16, powersgd, topk
  std::int64_t powersgd_rank = 4;
  std::int64_t powersgd_start = 100;  // steps before the hook begins to compress
  double topk_density = 0.01;
};
// Makes a hook by name; null: gradients are sent uncompressed. Error(kInvalid) for an unknown name.
std::shared_ptr<CommunicationHook> make_hook(const HookChoice& choice);

struct Precision {
  at::ScalarType parameters = at::kFloat;
  std::optional<at::ScalarType> autocast;  // for matrix products and convolutions
  bool scales_loss = false;                // float16 gradients need a GradScaler
};
// `name`: float32, bf16 (parameters too), autocast-bf16 or autocast-fp16. Error(kInvalid) for an
// unknown name.
Precision precision_of(const std::string& name);

// Takes a step with given gradients: clips them, takes the optimizer's step, advances the learning
// rate along its schedule and updates the average of the weights. Ownership: this object refers to
// the optimizer, which must outlive it.
class TrainingStep {
 public:
  // `num_steps`: the steps of the whole run. Error(kInvalid) when the schedule is unknown or its
  // options do not fit together; kUnsupported for averaged weights if the ranks share or divide the
  // weights (stage 3 of fully_shard()).
  TrainingStep(const StepOptions& options, optim::Optimizer& optimizer, std::int64_t num_steps);

  at::Tensor scaled(const at::Tensor& loss) const { return scaler_ ? scaler_->scale(loss) : loss; }
  void take();
  // Call it after each epoch, with the loss of the evaluation.
  void end_epoch(double loss);

  double learning_rate() const { return learning_rate_; }  // learning rate of the last step
  bool has_schedule() const { return schedule_ != nullptr; }
  // The number of the schedule's steps, if its rates depend on that number; otherwise 0.
  std::int64_t schedule_steps() const;
  // While the result lives, the model has the averaged weights. Null if no step has updated them.
  std::unique_ptr<optim::ExponentialMovingAverage::Swap> averaged_weights();
  // The parts that a Checkpointer saves.
  RunParts parts();

 private:
  const StepOptions options_;
  optim::Optimizer& optimizer_;
  const std::int64_t num_steps_;                  // steps of the whole run
  std::unique_ptr<optim::LRScheduler> schedule_;  // null: the rate is constant
  std::optional<optim::GradScaler> scaler_;       // for float16 gradients
  std::optional<optim::ExponentialMovingAverage> average_;
  double learning_rate_;
};

}  // namespace paceline::train
