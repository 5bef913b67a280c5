#include "paceline/planning/schedules/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/pipeline_schedule.h"
#include "paceline/planning/schedules/schedule_checks.h"

namespace paceline::pipeline {

Costs equal_costs(int num_stages, const StageCosts& each) {
  return {std::vector<StageCosts>(static_cast<std::size_t>(std::max(num_stages, 0)), each)};
}

double TimedSchedule::bubble_share() const {
  if (ranks.empty() || seconds <= 0) return 0;
  const double busy = std::accumulate(busy_s.begin(), busy_s.end(), 0.0);
  return 1 - busy / (seconds * static_cast<double>(ranks.size()));
}

void require_costs(const Costs& costs, int num_stages) {
  check(costs.stages.size() == static_cast<std::size_t>(num_stages),
        "costs of {} stages for a pipeline of {}", costs.stages.size(), num_stages);
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCosts& each = costs.stages[stage];
    for (const double value : {each.forward_s, each.input_gradient_s, each.weight_gradient_s,
                               each.backward_s.value_or(0), each.activation_bytes,
                               each.deferred_bytes, each.transfer_s}) {
      check(std::isfinite(value) && value >= 0,
            "stage {} has a cost of {}; times and sizes must be finite and not negative", stage,
            value);
    }
  }
}

TimedSchedule simulate(const PipelineSchedule& schedule, const Costs& costs) {
  validate(schedule);
  require_costs(costs, schedule.num_stages());
  ScheduleClock clock(schedule.rank_of_stage, schedule.num_micro_batches, costs);
  clock.run(schedule.ranks);
  return {clock.timed(schedule.ranks), clock.seconds(), clock.busy_s(), clock.peak_bytes()};
}

std::string describe(const PipelineSchedule& schedule, const TimedSchedule& timed) {
  std::string text = fmt::format("{}: {:.4g} s, bubble {:.1f}%", schedule.name, timed.seconds,
                                 100 * timed.bubble_share());
  if (!timed.peak_bytes.empty()) {
    const auto most = std::max_element(timed.peak_bytes.begin(), timed.peak_bytes.end());
    text += fmt::format(", peak memory {:.4g} bytes on rank {}", *most,
                        most - timed.peak_bytes.begin());
  }
  return text;
}

namespace {

std::size_t num_ranks(const std::vector<int>& rank_of_stage) {
  return static_cast<std::size_t>(*std::max_element(rank_of_stage.begin(), rank_of_stage.end())) +
         1;
}

}  // namespace

ScheduleClock::ScheduleClock(std::vector<int> rank_of_stage, int num_micro_batches, Costs costs)
    : rank_of_stage_(std::move(rank_of_stage)),
      num_micro_batches_(num_micro_batches),
      costs_(std::move(costs)) {
  const std::size_t ranks = num_ranks(rank_of_stage_);
  for (auto* const values : {&free_at_, &busy_, &kept_, &peak_}) values->resize(ranks);
  position_.resize(ranks);
  begin_.resize(ranks);
  const std::size_t places = rank_of_stage_.size() * static_cast<std::size_t>(num_micro_batches);
  forward_end_.resize(places);
  input_end_.resize(places);
}

bool ScheduleClock::run(const std::vector<std::vector<Action>>& ranks) {
  std::fill(forward_end_.begin(), forward_end_.end(), kNever);
  std::fill(input_end_.begin(), input_end_.end(), kNever);
  std::fill(position_.begin(), position_.end(), 0);
  for (auto* const values : {&free_at_, &busy_, &kept_, &peak_})
    std::fill(values->begin(), values->end(), 0.0);
  seconds_ = 0;
  to_try_.clear();
  for (std::size_t rank = ranks.size(); rank-- > 0;) {
    begin_[rank].resize(ranks[rank].size());
    to_try_.push_back(rank);
  }
  std::size_t left = 0;
  for (const auto& actions : ranks) left += actions.size();
  while (!to_try_.empty()) {
    const std::size_t rank = to_try_.back();
    to_try_.pop_back();
    while (position_[rank] < ranks[rank].size()) {
      const Action& action = ranks[rank][position_[rank]];
      const double ready = ready_at(action);
      if (ready == kNever) break;
      carry_out(rank, action, ready);
      --left;
    }
  }
  for (const double end : free_at_) seconds_ = std::max(seconds_, end);
  return left == 0;
}

std::vector<std::vector<TimedAction>> ScheduleClock::timed(
    const std::vector<std::vector<Action>>& ranks) const {
  std::vector<std::vector<TimedAction>> result(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < ranks[rank].size(); ++i) {
      const double begin = begin_[rank][i];
      result[rank].push_back({ranks[rank][i], begin, begin + duration(ranks[rank][i])});
    }
  }
  return result;
}

std::optional<Action> ScheduleClock::missing(const Action& action) const {
  const auto& [kind, stage, micro_batch] = action;
  const std::size_t here = place(stage, micro_batch);
  if (kind == Action::Kind::kForward) {
    if (stage > 0 && forward_end_[place(stage - 1, micro_batch)] == kNever)
      return Action{Action::Kind::kForward, stage - 1, micro_batch};
    return std::nullopt;
  }
  if (kind == Action::Kind::kWeightGradient) {
    if (input_end_[here] == kNever) return Action{Action::Kind::kInputGradient, stage, micro_batch};
    return std::nullopt;
  }
  if (forward_end_[here] == kNever) return Action{Action::Kind::kForward, stage, micro_batch};
  if (stage + 1 < static_cast<int>(rank_of_stage_.size()) &&
      input_end_[place(stage + 1, micro_batch)] == kNever)
    return Action{kind, stage + 1, micro_batch};
  return std::nullopt;
}

double ScheduleClock::duration(const Action& action) const {
  const StageCosts& costs = costs_of(action.stage);
  switch (action.kind) {
    case Action::Kind::kForward:
      return costs.forward_s;
    case Action::Kind::kInputGradient:
      return costs.input_gradient_s;
    case Action::Kind::kWeightGradient:
      return costs.weight_gradient_s;
    case Action::Kind::kBackward:
      break;
  }
  return costs.backward_s.value_or(costs.input_gradient_s + costs.weight_gradient_s);
}

double ScheduleClock::change_of_bytes(const Action& action) const {
  const StageCosts& costs = costs_of(action.stage);
  switch (action.kind) {
    case Action::Kind::kForward:
      return costs.activation_bytes;
    case Action::Kind::kInputGradient:
      return costs.deferred_bytes - costs.activation_bytes;
    case Action::Kind::kWeightGradient:
      return -costs.deferred_bytes;
    case Action::Kind::kBackward:
      break;
  }
  return -costs.activation_bytes;
}

double ScheduleClock::arrival(double end, int from, int to) const {
  const auto rank_of = [&](int stage) { return rank_of_stage_[static_cast<std::size_t>(stage)]; };
  return rank_of(from) == rank_of(to) ? end : end + costs_of(std::min(from, to)).transfer_s;
}

double ScheduleClock::ready_at(const Action& action) const {
  if (missing(action)) return kNever;
  const auto& [kind, stage, micro_batch] = action;
  if (kind == Action::Kind::kForward) {
    return stage == 0 ? 0 : arrival(forward_end_[place(stage - 1, micro_batch)], stage - 1, stage);
  }
  if (kind == Action::Kind::kWeightGradient ||
      stage + 1 == static_cast<int>(rank_of_stage_.size())) {
    return 0;  // its input was made on this rank
  }
  return arrival(input_end_[place(stage + 1, micro_batch)], stage + 1, stage);
}

void ScheduleClock::carry_out(std::size_t rank, const Action& action, double ready) {
  const double begin = std::max(free_at_[rank], ready), time = duration(action);
  begin_[rank][position_[rank]++] = begin;
  free_at_[rank] = begin + time;
  busy_[rank] += time;
  kept_[rank] += change_of_bytes(action);
  peak_[rank] = std::max(peak_[rank], kept_[rank]);
  const auto wake = [&](int stage) {
    if (stage < 0 || stage >= static_cast<int>(rank_of_stage_.size())) return;
    const auto other = static_cast<std::size_t>(rank_of_stage_[static_cast<std::size_t>(stage)]);
    if (other != rank) to_try_.push_back(other);
  };
  if (action.kind == Action::Kind::kForward) {
    forward_end_[place(action.stage, action.micro_batch)] = free_at_[rank];
    wake(action.stage + 1);
  } else if (action.makes_input_gradient()) {
    input_end_[place(action.stage, action.micro_batch)] = free_at_[rank];
    wake(action.stage - 1);
  }
}

}  // namespace paceline::pipeline
