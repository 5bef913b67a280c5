#include "paceline/training/optim/schedule.h"

#include "paceline/engine/core/check.h"

namespace paceline::optim {

Words Schedule::parameters() const {
  Words words = options();
  words["schedule"] = name();
  words["base_lr"] = to_word(base_rates_);
  return words;
}

Words Schedule::state() const {
  Words words = parameters();
  words.merge(progress());
  return words;
}

void Schedule::require_own(const Words& state) const {
  require_same_words(state, parameters(), name());
}

void Schedule::set_state(const Words& state) {
  require_own(state);
  set_progress(state);
}

void Schedule::require_own_groups() const {
  check(optimizer_.num_groups() == base_rates_.size(),
        "{}: the optimizer has {} parameter groups now, and had {} when this schedule was made: "
        "make the schedule after add_param_group()",
        name(), optimizer_.num_groups(), base_rates_.size());
}

void LrSchedule::step() {
  ++num_steps_;
  apply();
}

void LrSchedule::apply() {
  require_own_groups();
  std::vector<double> rates;
  for (std::size_t group = 0; group < optimizer().num_groups(); ++group)
    rates.push_back(rate(group, num_steps_));
  optimizer().set_learning_rates(rates);
}

Words LrSchedule::progress() const { return {{"num_steps", to_word(num_steps_)}}; }

void LrSchedule::set_progress(const Words& words) {
  const std::int64_t num_steps = count_in(words, "num_steps", name());
  check(num_steps >= 0, "{}: the saved number of steps {} is negative", name(), num_steps);
  num_steps_ = num_steps;
  apply();
}

}  // namespace paceline::optim
