#include "paceline/training/optim/reduce_lr_on_plateau.h"

#include <algorithm>

#include "paceline/engine/core/check.h"

namespace paceline::optim {

ReduceLrOnPlateau::ReduceLrOnPlateau(Optimizer& optimizer, const ReduceLrOnPlateauOptions& options)
    : Schedule(optimizer),
      options_(options),
      best_(options.mode == MetricMode::kMin ? std::numeric_limits<double>::infinity()
                                             : -std::numeric_limits<double>::infinity()) {
  check(options.factor > 0 && options.factor < 1, "reduce_on_plateau: factor {} must be in (0, 1)",
        options.factor);
  check(options.patience >= 0 && options.cooldown >= 0 && options.threshold >= 0 &&
            options.min_lr >= 0 && options.eps >= 0,
        "reduce_on_plateau: patience, cooldown, threshold, min_lr and eps must not be negative");
}

bool ReduceLrOnPlateau::is_better(double metric) const {
  const bool is_relative = options_.threshold_mode == ThresholdMode::kRelative;
  if (options_.mode == MetricMode::kMin) {
    return metric < (is_relative ? best_ * (1 - options_.threshold) : best_ - options_.threshold);
  }
  return metric > (is_relative ? best_ * (1 + options_.threshold) : best_ + options_.threshold);
}

void ReduceLrOnPlateau::step(double metric) {
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

void ReduceLrOnPlateau::reduce() {
  std::vector<double> rates = optimizer().learning_rates();
  for (double& rate : rates) {
    const double lower = std::max(rate * options_.factor, options_.min_lr);
    if (rate - lower > options_.eps) rate = lower;
  }
  optimizer().set_learning_rates(rates);
}

Words ReduceLrOnPlateau::options() const {
  const auto& o = options_;
  return {{"mode", o.mode == MetricMode::kMin ? "min" : "max"},
          {"factor", to_word(o.factor)},
          {"patience", to_word(o.patience)},
          {"threshold", to_word(o.threshold)},
          {"threshold_mode", o.threshold_mode == ThresholdMode::kRelative ? "rel" : "abs"},
          {"cooldown", to_word(o.cooldown)},
          {"min_lr", to_word(o.min_lr)},
          {"eps", to_word(o.eps)}};
}

Words ReduceLrOnPlateau::progress() const {
  return {{"best", to_word(best_)},
          {"num_bad", to_word(num_bad_)},
          {"cooldown_left", to_word(cooldown_left_)},
          {"lr", to_word(optimizer().learning_rates())}};
}

void ReduceLrOnPlateau::set_progress(const Words& words) {
  const double best = number_in(words, "best", name());
  const std::int64_t num_bad = count_in(words, "num_bad", name());
  const std::int64_t cooldown_left = count_in(words, "cooldown_left", name());
  optimizer().set_learning_rates(numbers_in(words, "lr", name()));
  best_ = best;
  num_bad_ = num_bad;
  cooldown_left_ = cooldown_left;
}

}  // namespace paceline::optim
