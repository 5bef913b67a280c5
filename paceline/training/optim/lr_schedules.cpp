#include "paceline/training/optim/lr_schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "paceline/engine/core/check.h"

namespace paceline::optim {

StepLr::StepLr(Optimizer& optimizer, const StepLrOptions& options)
    : LrSchedule(optimizer), options_(options) {
  check(options.step_size > 0 && options.gamma > 0,
        "step: step_size {} and gamma {} must be above 0", options.step_size, options.gamma);
  apply();
}

double StepLr::rate(std::size_t group, std::int64_t step) const {
  return base_rates()[group] *
         std::pow(options_.gamma, static_cast<double>(step / options_.step_size));
}

Words StepLr::options() const {
  return {{"step_size", to_word(options_.step_size)}, {"gamma", to_word(options_.gamma)}};
}

MultiStepLr::MultiStepLr(Optimizer& optimizer, const MultiStepLrOptions& options)
    : LrSchedule(optimizer), options_(options) {
  check(options.gamma > 0, "multi_step: gamma {} must be above 0", options.gamma);
  std::ranges::sort(options_.milestones);
  apply();
}

double MultiStepLr::rate(std::size_t group, std::int64_t step) const {
  const auto& all = options_.milestones;
  const auto reached = std::ranges::upper_bound(all, step) - all.begin();
  return base_rates()[group] * std::pow(options_.gamma, static_cast<double>(reached));
}

Words MultiStepLr::options() const {
  return {{"milestones", to_word(options_.milestones)}, {"gamma", to_word(options_.gamma)}};
}

CosineAnnealingLr::CosineAnnealingLr(Optimizer& optimizer, const CosineAnnealingLrOptions& options)
    : LrSchedule(optimizer), options_(options) {
  check(options.t_max > 0 && options.warmup_steps >= 0,
        "cosine_annealing: t_max {} must be above 0, warmup_steps {} not negative", options.t_max,
        options.warmup_steps);
  check(options.eta_min >= 0, "cosine_annealing: eta_min {} must not be negative", options.eta_min);
  check(options.warmup_start_factor > 0 && options.warmup_start_factor <= 1,
        "cosine_annealing: warmup_start_factor {} must be in (0, 1]", options.warmup_start_factor);
  apply();
}

double CosineAnnealingLr::rate(std::size_t group, std::int64_t step) const {
  const double base = base_rates()[group];
  if (step < options_.warmup_steps) {
    const double share = static_cast<double>(step) / static_cast<double>(options_.warmup_steps);
    return base * (options_.warmup_start_factor + (1 - options_.warmup_start_factor) * share);
  }
  const double turn = static_cast<double>(step - options_.warmup_steps) /
                      static_cast<double>(options_.t_max) * std::numbers::pi;
  return options_.eta_min + (base - options_.eta_min) * (1 + std::cos(turn)) / 2;
}

Words CosineAnnealingLr::options() const {
  return {{"t_max", to_word(options_.t_max)},
          {"eta_min", to_word(options_.eta_min)},
          {"warmup_steps", to_word(options_.warmup_steps)},
          {"warmup_start_factor", to_word(options_.warmup_start_factor)}};
}

}  // namespace paceline::optim
