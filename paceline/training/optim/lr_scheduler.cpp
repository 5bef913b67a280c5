#include "paceline/training/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/metadata_words.h"

namespace paceline::optim {

Metadata LRScheduler::parameters() const {
  Metadata words = options();
  words["schedule"] = name();
  words["base_lr"] = to_word(base_rates_);
  return words;
}

Metadata LRScheduler::state() const {
  Metadata words = parameters();
  words.merge(progress());
  return words;
}

void LRScheduler::require_compatible(const Metadata& state) const {
  require_same_words(state, parameters(), name());
}

void LRScheduler::set_state(const Metadata& state) {
  require_compatible(state);
  set_progress(state);
}

void LRScheduler::require_own_groups() const {
  check(optimizer_.num_groups() == base_rates_.size(),
        "{}: the optimizer has {} parameter groups now, and had {} when this schedule was made: "
        "make the schedule after add_param_group()",
        name(), optimizer_.num_groups(), base_rates_.size());
}

void StepCountScheduler::step() {
  ++num_steps_;
  apply();
}

void StepCountScheduler::apply() {
  require_own_groups();
  std::vector<double> rates;
  for (std::size_t group = 0; group < optimizer().num_groups(); ++group)
    rates.push_back(rate(group, num_steps_));
  optimizer().set_learning_rates(rates);
}

Metadata StepCountScheduler::progress() const { return {{"num_steps", to_word(num_steps_)}}; }

void StepCountScheduler::set_progress(const Metadata& words) {
  const std::int64_t num_steps = count_in(words, "num_steps", name());
  check(num_steps >= 0, "{}: the saved number of steps {} is negative", name(), num_steps);
  num_steps_ = num_steps;
  apply();
}

StepLR::StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma)
    : StepCountScheduler(optimizer), step_size_(step_size), gamma_(gamma) {
  check(step_size > 0 && gamma > 0, "step: step_size {} and gamma {} must be above 0", step_size,
        gamma);
  apply();
}

double StepLR::rate(std::size_t group, std::int64_t step) const {
  return base_rates()[group] * std::pow(gamma_, static_cast<double>(step / step_size_));
}

Metadata StepLR::options() const {
  return {{"step_size", to_word(step_size_)}, {"gamma", to_word(gamma_)}};
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma)
    : StepCountScheduler(optimizer), milestones_(std::move(milestones)), gamma_(gamma) {
  check(gamma > 0, "multi_step: gamma {} must be above 0", gamma);
  std::ranges::sort(milestones_);
  apply();
}

double MultiStepLR::rate(std::size_t group, std::int64_t step) const {
  const auto& all = milestones_;
  const auto reached = std::ranges::upper_bound(all, step) - all.begin();
  return base_rates()[group] * std::pow(gamma_, static_cast<double>(reached));
}

Metadata MultiStepLR::options() const {
  return {{"milestones", to_word(milestones_)}, {"gamma", to_word(gamma_)}};
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : StepCountScheduler(optimizer), options_(options) {
  check(options.T_max > 0 && options.warmup_steps >= 0,
        "cosine_annealing: T_max {} must be above 0, warmup_steps {} not negative", options.T_max,
        options.warmup_steps);
  check(options.eta_min >= 0, "cosine_annealing: eta_min {} must not be negative", options.eta_min);
  check(options.warmup_start_factor > 0 && options.warmup_start_factor <= 1,
        "cosine_annealing: warmup_start_factor {} must be in (0, 1]", options.warmup_start_factor);
  apply();
}

double CosineAnnealingLR::rate(std::size_t group, std::int64_t step) const {
  const double base = base_rates()[group];
  if (step < options_.warmup_steps) {
    const double share = static_cast<double>(step) / static_cast<double>(options_.warmup_steps);
    return base * (options_.warmup_start_factor + (1 - options_.warmup_start_factor) * share);
  }
  const double angle = static_cast<double>(step - options_.warmup_steps) /
                       static_cast<double>(options_.T_max) * std::numbers::pi;
  return options_.eta_min + (base - options_.eta_min) * (1 + std::cos(angle)) / 2;
}

Metadata CosineAnnealingLR::options() const {
  return {{"T_max", to_word(options_.T_max)},
          {"eta_min", to_word(options_.eta_min)},
          {"warmup_steps", to_word(options_.warmup_steps)},
          {"warmup_start_factor", to_word(options_.warmup_start_factor)}};
}

namespace {

// Returns the phase to which `step` belongs, and the fraction of the phase that has passed. After
// the last step the last phase is complete.
template <class Phases>
auto phase_at(const Phases& phases, std::int64_t step) {
  double begin = 0;
  auto phase = phases.begin();
  for (; phase + 1 != phases.end() && static_cast<double>(step) > phase->end; ++phase)
    begin = phase->end;
  // A phase of no steps is complete at once.
  const double length = phase->end - begin;
  const double share = length > 0 ? (static_cast<double>(step) - begin) / length : 1;
  return std::pair(*phase, std::min(share, 1.0));
}

}  // namespace

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : StepCountScheduler(optimizer), options_(options) {
  check(options.total_steps > 0, "one_cycle: total_steps {} must be above 0", options.total_steps);
  check(options.pct_start >= 0 && options.pct_start <= 1,
        "one_cycle: pct_start {} must be in [0, 1]", options.pct_start);
  check(options.div_factor > 0 && options.final_div_factor > 0,
        "one_cycle: div_factor and final_div_factor must be above 0");
  for (const double momentum : {options.base_momentum, options.max_momentum}) {
    check(!options.cycle_momentum || (momentum >= 0 && momentum < 1),
          "one_cycle: momentum {} must be in [0, 1)", momentum);
  }
  const std::size_t num_groups = optimizer.num_groups();
  if (options_.max_lr.size() == 1) options_.max_lr.resize(num_groups, options_.max_lr[0]);
  check(options_.max_lr.size() == num_groups, "one_cycle: {} values of max_lr for {} groups",
        options_.max_lr.size(), num_groups);
  for (std::size_t group = 0; options.cycle_momentum && group < num_groups; ++group) {
    check(optimizer.momentum(group) > 0,
          "one_cycle: group {} has no momentum; set cycle_momentum to false", group);
  }
  apply();
}

std::vector<OneCycleLR::Phase> OneCycleLR::phases() const {
  const auto& o = options_;
  const auto total = static_cast<double>(o.total_steps);
  const double first = 1 / o.div_factor;
  const double last = first / o.final_div_factor;
  const double top = o.pct_start * total;
  if (o.three_phase) {
    return {{top - 1, first, 1, o.max_momentum, o.base_momentum},
            {2 * top - 2, 1, first, o.base_momentum, o.max_momentum},
            {total - 1, first, last, o.max_momentum, o.max_momentum}};
  }
  return {{top - 1, first, 1, o.max_momentum, o.base_momentum},
          {total - 1, 1, last, o.base_momentum, o.max_momentum}};
}

double OneCycleLR::between(double first, double last, double share) const {
  if (options_.anneal_strategy == OneCycleLROptions::AnnealStrategy::kLinear)
    return (last - first) * share + first;
  return last + (first - last) / 2 * (1 + std::cos(std::numbers::pi * share));
}

double OneCycleLR::rate(std::size_t group, std::int64_t step) const {
  const auto [phase, share] = phase_at(phases(), step);
  return options_.max_lr[group] * between(phase.first_rate, phase.last_rate, share);
}

void OneCycleLR::apply() {
  check(num_steps() <= options_.total_steps, "one_cycle: step {} is after its {} steps",
        num_steps(), options_.total_steps);
  StepCountScheduler::apply();
  if (!options_.cycle_momentum) return;
  const auto [phase, share] = phase_at(phases(), num_steps());
  const double momentum = between(phase.first_momentum, phase.last_momentum, share);
  for (std::size_t group = 0; group < optimizer().num_groups(); ++group)
    optimizer().set_momentum(group, momentum);
}

Metadata OneCycleLR::options() const {
  const auto& o = options_;
  return {{"max_lr", to_word(o.max_lr)},
          {"total_steps", to_word(o.total_steps)},
          {"pct_start", to_word(o.pct_start)},
          {"anneal_strategy",
           o.anneal_strategy == OneCycleLROptions::AnnealStrategy::kCosine ? "cos" : "linear"},
          {"cycle_momentum", o.cycle_momentum ? "yes" : "no"},
          {"base_momentum", to_word(o.base_momentum)},
          {"max_momentum", to_word(o.max_momentum)},
          {"div_factor", to_word(o.div_factor)},
          {"final_div_factor", to_word(o.final_div_factor)},
          {"three_phase", o.three_phase ? "yes" : "no"}};
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : LRScheduler(optimizer),
      options_(options),
      best_(options.mode == ReduceLROnPlateauOptions::Mode::kMin
                ? std::numeric_limits<double>::infinity()
                : -std::numeric_limits<double>::infinity()) {
  check(options.factor > 0 && options.factor < 1, "reduce_on_plateau: factor {} must be in (0, 1)",
        options.factor);
  check(options.patience >= 0 && options.cooldown >= 0 && options.threshold >= 0 &&
            options.min_lr >= 0 && options.eps >= 0,
        "reduce_on_plateau: patience, cooldown, threshold, min_lr and eps must not be negative");
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool is_relative =
      options_.threshold_mode == ReduceLROnPlateauOptions::ThresholdMode::kRelative;
  if (options_.mode == ReduceLROnPlateauOptions::Mode::kMin) {
    return metric < (is_relative ? best_ * (1 - options_.threshold) : best_ - options_.threshold);
  }
  return metric > (is_relative ? best_ * (1 + options_.threshold) : best_ + options_.threshold);
}

void ReduceLROnPlateau::step(double metric) {
  if (is_better(metric)) {
    best_ = metric;
    num_bad_ = 0;
  } else {
    ++num_bad_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    num_bad_ = 0;
  }
  if (num_bad_ <= options_.patience) return;
  reduce();
  cooldown_left_ = options_.cooldown;
  num_bad_ = 0;
}

void ReduceLROnPlateau::reduce() {
  std::vector<double> rates = optimizer().learning_rates();
  for (double& rate : rates) {
    const double lower = std::max(rate * options_.factor, options_.min_lr);
    if (rate - lower > options_.eps) rate = lower;
  }
  optimizer().set_learning_rates(rates);
}

Metadata ReduceLROnPlateau::options() const {
  const auto& o = options_;
  return {{"mode", o.mode == ReduceLROnPlateauOptions::Mode::kMin ? "min" : "max"},
          {"factor", to_word(o.factor)},
          {"patience", to_word(o.patience)},
          {"threshold", to_word(o.threshold)},
          {"threshold_mode",
           o.threshold_mode == ReduceLROnPlateauOptions::ThresholdMode::kRelative ? "rel" : "abs"},
          {"cooldown", to_word(o.cooldown)},
          {"min_lr", to_word(o.min_lr)},
          {"eps", to_word(o.eps)}};
}

Metadata ReduceLROnPlateau::progress() const {
  return {{"best", to_word(best_)},
          {"num_bad", to_word(num_bad_)},
          {"cooldown_left", to_word(cooldown_left_)},
          {"lr", to_word(optimizer().learning_rates())}};
}

void ReduceLROnPlateau::set_progress(const Metadata& words) {
  const double best = number_in(words, "best", name());
  const std::int64_t num_bad = count_in(words, "num_bad", name());
  const std::int64_t cooldown_left = count_in(words, "cooldown_left", name());
  optimizer().set_learning_rates(numbers_in(words, "lr", name()));
  best_ = best;
  num_bad_ = num_bad;
  cooldown_left_ = cooldown_left;
}

}  // namespace paceline::optim
