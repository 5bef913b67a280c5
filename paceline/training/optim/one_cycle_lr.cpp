#include "paceline/training/optim/one_cycle_lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "paceline/engine/core/check.h"

namespace paceline::optim {
namespace {

// The phase that `step` is in, and which share of it has passed. Nothing follows the last step.
template <class Phases>
auto phase_at(const Phases& phases, std::int64_t step) {
  double begin = 0;
  auto phase = phases.begin();
  for (; phase + 1 != phases.end() && static_cast<double>(step) > phase->end; ++phase)
    begin = phase->end;
  const double share = (static_cast<double>(step) - begin) / (phase->end - begin);
  return std::pair(*phase, std::min(share, 1.0));
}

}  // namespace

OneCycleLr::OneCycleLr(Optimizer& optimizer, const OneCycleLrOptions& options)
    : LrSchedule(optimizer), options_(options) {
  check(options.total_steps > 0, "one_cycle: total_steps {} must be above 0", options.total_steps);
  check(options.pct_start >= 0 && options.pct_start <= 1,
        "one_cycle: pct_start {} must be in [0, 1]", options.pct_start);
  check(options.div_factor > 0 && options.final_div_factor > 0,
        "one_cycle: div_factor and final_div_factor must be above 0");
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

std::vector<OneCycleLr::Phase> OneCycleLr::phases() const {
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

double OneCycleLr::between(double first, double last, double share) const {
  if (options_.anneal == Anneal::kLinear) return (last - first) * share + first;
  return last + (first - last) / 2 * (1 + std::cos(std::numbers::pi * share));
}

double OneCycleLr::rate(std::size_t group, std::int64_t step) const {
  const auto [phase, share] = phase_at(phases(), step);
  return options_.max_lr[group] * between(phase.first_rate, phase.last_rate, share);
}

void OneCycleLr::apply() {
  check(num_steps() <= options_.total_steps, "one_cycle: step {} is after its {} steps",
        num_steps(), options_.total_steps);
  LrSchedule::apply();
  if (!options_.cycle_momentum) return;
  const auto [phase, share] = phase_at(phases(), num_steps());
  const double momentum = between(phase.first_momentum, phase.last_momentum, share);
  for (std::size_t group = 0; group < optimizer().num_groups(); ++group)
    optimizer().set_momentum(group, momentum);
}

Words OneCycleLr::options() const {
  const auto& o = options_;
  return {{"max_lr", to_word(o.max_lr)},
          {"total_steps", to_word(o.total_steps)},
          {"pct_start", to_word(o.pct_start)},
          {"anneal", o.anneal == Anneal::kCosine ? "cos" : "linear"},
          {"cycle_momentum", o.cycle_momentum ? "yes" : "no"},
          {"base_momentum", to_word(o.base_momentum)},
          {"max_momentum", to_word(o.max_momentum)},
          {"div_factor", to_word(o.div_factor)},
          {"final_div_factor", to_word(o.final_div_factor)},
          {"three_phase", o.three_phase ? "yes" : "no"}};
}

}  // namespace paceline::optim
