#include "paceline/training/train/training_step.h"

#include <algorithm>
#include <string>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/train/model_parts.h"
#include "paceline/training/train/run_parts.h"

namespace paceline::train {

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerChoice& choice,
                                                 const std::vector<at::Tensor>& parameters) {
  using namespace optim;
  const double lr = choice.lr, momentum = choice.momentum, decay = choice.weight_decay.value_or(0);
  if (choice.name == "sgd") {
    const SGDOptions sgd{.lr = lr, .momentum = momentum, .weight_decay = decay};
    return std::make_unique<SGD>(parameters, sgd);
  }
  if (choice.name == "lamb")
    return std::make_unique<LAMB>(parameters, LAMBOptions{.lr = lr, .weight_decay = decay});
  if (choice.name == "lars") {
    const LARSOptions lars{.lr = lr, .momentum = momentum, .weight_decay = decay};
    return std::make_unique<LARS>(parameters, lars);
  }
  if (choice.name == "adamw") {
    AdamWOptions adamw{.lr = lr};
    if (choice.weight_decay) adamw.weight_decay = decay;
    return std::make_unique<AdamW>(parameters, adamw);
  }
  check(choice.name == "adam", "unknown optimizer '{}'; choose one of adam, adamw, sgd, lamb, lars",
        choice.name);
  return std::make_unique<Adam>(parameters, AdamOptions{.lr = lr, .weight_decay = decay});
}

std::shared_ptr<CommunicationHook> make_hook(const HookChoice& choice) {
  if (choice.name == "none") return nullptr;
  if (choice.name == "bf16") return std::make_shared<CompressHook>(at::kBFloat16);
  if (choice.name == "fp16") return std::make_shared<CompressHook>(at::kHalf);
  if (choice.name == "topk") return std::make_shared<TopKHook>(choice.topk_density);
  check(choice.name == "powersgd",
        "unknown communication hook '{}'; choose one of none, bf16, fp16, powersgd, topk",
        choice.name);
  return std::make_shared<PowerSGDHook>(
      PowerSGDOptions{.rank = choice.powersgd_rank, .start_step = choice.powersgd_start});
}

Precision precision_of(const std::string& name) {
  if (name == "bf16") return {.parameters = at::kBFloat16, .autocast = {}};
  if (name == "autocast-bf16") return {.autocast = at::kBFloat16};
  if (name == "autocast-fp16") return {.autocast = at::kHalf, .scales_loss = true};
  check(name == "float32",
        "unknown precision '{}'; choose one of float32, bf16, autocast-bf16, autocast-fp16", name);
  return {};
}

optim::ModelParts model_parts(torch::nn::Module& module, std::shared_ptr<ProcessGroup> model,
                              std::shared_ptr<ProcessGroup> layers,
                              const std::vector<at::Tensor>& tied) {
  check(layers != nullptr,
        "model_parts: `layers` is null: give it the group of the ranks that divide the layers, or "
        "a group of this rank alone if none are divided");
  optim::ModelParts parts{.model = std::move(model), .layers = std::move(layers)};
  models::visit_parameters(
      module, [&](const std::string&, at::Tensor& parameter, const auto& division) {
        const bool is_divided = division && division->parts > 1;
        if (is_divided) parts.divided.push_back(parameter);
        const bool is_tied = std::ranges::any_of(
            tied, [&](const at::Tensor& other) { return other.is_same(parameter); });
        if (is_tied || (!is_divided && parts.layers->rank() > 0)) parts.copies.push_back(parameter);
      });
  return parts;
}

namespace {

std::int64_t steps_of(const StepOptions& options, std::int64_t num_steps) {
  return options.schedule_steps > 0 ? options.schedule_steps : num_steps;
}

std::unique_ptr<optim::LRScheduler> make_schedule(const StepOptions& options,
                                                  optim::Optimizer& optimizer,
                                                  std::int64_t num_steps) {
  const std::int64_t steps = steps_of(options, num_steps);
  check(options.warmup_steps < steps,
        "--warmup {}: the schedule has {} steps; see --lr-schedule-steps", options.warmup_steps,
        steps);
  if (options.schedule == "step") {
    const std::int64_t every =
        options.rate_every > 0 ? options.rate_every : std::max<std::int64_t>(steps / 3, 1);
    return std::make_unique<optim::StepLR>(optimizer, every);
  }
  if (options.schedule == "cosine") {
    return std::make_unique<optim::CosineAnnealingLR>(
        optimizer, optim::CosineAnnealingLROptions{.T_max = steps - options.warmup_steps,
                                                   .warmup_steps = options.warmup_steps});
  }
  if (options.schedule == "one-cycle") {
    optim::OneCycleLROptions cycle{.max_lr = optimizer.learning_rates(),
                                   .total_steps = steps,
                                   .cycle_momentum = optimizer.momentum(0) > 0};
    if (options.warmup_steps > 0)
      cycle.pct_start = static_cast<double>(options.warmup_steps) / static_cast<double>(steps);
    return std::make_unique<optim::OneCycleLR>(optimizer, cycle);
  }
  if (options.schedule == "plateau") {
    return std::make_unique<optim::ReduceLROnPlateau>(
        optimizer, optim::ReduceLROnPlateauOptions{.patience = 2});
  }
  check(options.schedule == "constant",
        "unknown schedule '{}'; choose one of constant, step, cosine, one-cycle, plateau",
        options.schedule);
  return nullptr;
}

}  // namespace

TrainingStep::TrainingStep(const StepOptions& options, optim::Optimizer& optimizer,
                           std::int64_t num_steps)
    : options_(options),
      optimizer_(optimizer),
      num_steps_(num_steps),
      schedule_(make_schedule(options, optimizer, num_steps)),
      learning_rate_(optimizer.learning_rate()) {
  if (options.scales_loss) scaler_.emplace();
  if (options.ema > 0) {
    if (core_of(optimizer).shares_parameters()) {
      fail(ErrorCode::kUnsupported,
           "--ema: an average of the weights cannot take the place of weights that ranks share or "
           "divide; use stage 2 of fully_shard()");
    }
    average_.emplace(optimizer.parameters(), options.ema);
  }
}

std::int64_t TrainingStep::schedule_steps() const {
  const bool follows = options_.schedule == "cosine" || options_.schedule == "one-cycle" ||
                       (options_.schedule == "step" && options_.rate_every == 0);
  return follows ? steps_of(options_, num_steps_) : 0;
}

void TrainingStep::take() {
  if (scaler_) scaler_->unscale(optimizer_);  // called here, before clipping
  if (options_.clip_norm > 0) optim::clip_grad_norm(optimizer_, options_.clip_norm);
  if (options_.clip_value > 0) optim::clip_grad_value(optimizer_, options_.clip_value);
  learning_rate_ = optimizer_.learning_rate();
  if (scaler_) {
    scaler_->step(optimizer_);
    scaler_->update();
  } else {
    optimizer_.step();
  }
  if (auto* const by_steps = dynamic_cast<optim::StepCountScheduler*>(schedule_.get()))
    by_steps->step();
  if (average_) average_->update();
}

void TrainingStep::end_epoch(double loss) {
  auto* const by_loss = dynamic_cast<optim::ReduceLROnPlateau*>(schedule_.get());
  if (by_loss != nullptr) by_loss->step(loss);
}

std::unique_ptr<optim::ExponentialMovingAverage::Swap> TrainingStep::averaged_weights() {
  if (!average_ || average_->num_updates() == 0) return nullptr;
  return std::make_unique<optim::ExponentialMovingAverage::Swap>(*average_);
}

RunParts TrainingStep::parts() {
  return {.schedule = schedule_.get(),
          .scaler = scaler_ ? &*scaler_ : nullptr,
          .average = average_ ? &*average_ : nullptr};
}

}  // namespace paceline::train
