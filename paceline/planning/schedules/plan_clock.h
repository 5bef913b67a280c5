#pragma once

// Runs the actions of all ranks in virtual time (simulate.h has the model): what simulate(),
// validate() and the search have in common. Made once for a layout and its costs, it times many
// orders without allocating memory, a few dozen nanoseconds an action.
//
// Thread safety: none.

#include <optional>
#include <vector>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

class PlanClock {
 public:
  // Requires: a rank and costs for each stage.
  PlanClock(std::vector<int> rank_of_stage, int num_micro_batches, Costs costs);

  // False when a rank would wait forever; position(rank) is then where each rank stands. Requires:
  // stages and micro-batches within range, stages on their ranks.
  bool run(const std::vector<std::vector<Action>>& ranks);

  double seconds() const { return seconds_; }
  const std::vector<double>& busy_s() const { return busy_; }
  const std::vector<double>& peak_bytes() const { return peak_; }
  // Of the last run(), which ended: when each action began and ended.
  std::vector<std::vector<TimedAction>> timed(const std::vector<std::vector<Action>>& ranks) const;
  std::size_t position(int rank) const { return position_[static_cast<std::size_t>(rank)]; }
  // What the action waits for that has not been carried out.
  std::optional<Action> missing(const Action& action) const;

  double duration(const Action& action) const;
  // By how much the action changes what its rank keeps.
  double change_of_bytes(const Action& action) const;

 private:
  static constexpr double kNever = -1;

  std::size_t place(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(num_micro_batches_) +
           static_cast<std::size_t>(micro_batch);
  }
  const StageCosts& costs_of(int stage) const {
    return costs_.stages[static_cast<std::size_t>(stage)];
  }
  double arrival(double end, int from, int to) const;
  double ready_at(const Action& action) const;
  void carry_out(std::size_t rank, const Action& action, double ready);

  const std::vector<int> rank_of_stage_;
  const int num_micro_batches_;
  const Costs costs_;
  std::vector<double> forward_end_, input_end_;  // by place(); kNever: not yet
  std::vector<std::size_t> position_;
  std::vector<double> free_at_, busy_, kept_, peak_;
  std::vector<std::vector<double>> begin_;
  std::vector<std::size_t> to_try_;
  double seconds_ = 0;
};

}  // namespace paceline::pipeline
