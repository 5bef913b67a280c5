#pragma once

// Predicts a step of a job that is divided in some way: its time, what of it is bubble and
// communication that nothing hides, its memory, and what failures leave of it.
//
// The model. A replica has its share of the global batch, in micro-batches. A layer's pass takes
// what the profile says, its divisible part shared by the ranks of tp, and the all-reduces between
// these. A pipeline is simulated (planning/schedules/simulate.h), where the program searches with
// the plan that the search finds; where a host has fewer cores than its ranks have threads, all
// ranks share them (step_parts.h). Gradients are exchanged bucket by bucket while the last
// backward pass runs (step_parts.h), in a pipeline after it; what processors do for it, sums
// in shared memory above all, adds to the step. The optimizer's step is divided from shard stage 1
// on, and what it updated is then gathered. The slowest of all ranks decides about the passes
// (step_parts.h).
//
// Thread safety: none; one Forecaster a thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "paceline/planning/forecast/memory_plan.h"
#include "paceline/planning/forecast/way.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::planning {

// Seconds of a step, which they add up to.
struct StepTimes {
  double compute = 0;    // passes, of the mean rank
  double bubble = 0;     // waiting for other stages
  double exchange = 0;   // of tensor parallelism
  double gradients = 0;  // exchange of gradients and of updated parameters, not hidden
  double optimizer = 0;
  double stragglers = 0;  // waiting for the slowest rank
  double other = 0;       // data, and what the loop does beside

  double all() const {
    return compute + bubble + exchange + gradients + optimizer + stragglers + other;
  }
};

struct Forecast {
  Way way;
  StepTimes times;
  double hidden_s = 0;  // of the exchange of gradients, under the backward pass
  MemoryPlan memory;
  bool fits = true;
  double goodput = 1;     // the share of time that failures and checkpoints leave
  double interval_s = 0;  // between checkpoints; 0: no failures are planned for
  std::int64_t samples_per_step = 0;

  double step_s() const { return times.all(); }
  // With what failures take.
  double samples_per_second() const {
    return static_cast<double>(samples_per_step) * goodput / step_s();
  }
};

class Forecaster {
 public:
  // `global_batch`: samples of a step of all replicas together. Error(kInvalid) as require_valid().
  Forecaster(const JobProfile& profile, const Machine& machine, std::int64_t global_batch);

  // Error(kInvalid) with why_not() for a way that is none.
  Forecast forecast(const Way& way);
  // Pipelines that have been simulated so far.
  std::int64_t num_simulations() const { return num_simulations_; }

 private:
  // The passes of all micro-batches of a step.
  struct Passes {
    std::vector<RankLayers> ranks;  // of pp
    double compute = 0, bubble = 0, exchange = 0;
    std::vector<double> kept;  // bytes of activations at the peak, [rank]
  };

  double samples_at_once(const Way& way) const;
  double slowdown() const;
  double exchange_of(const LayerProfile& layer, const Way& way) const;
  const Passes& passes(const Way& way);
  Passes simulated_passes(const Way& way);
  pipeline::Costs costs_of(const Way& way, const std::vector<LayerRange>& stages,
                           const std::vector<int>& rank_of_stage) const;
  Passes plain_passes(const Way& way) const;
  double seconds_of(const pipeline::Plan& plan, const pipeline::Costs& costs, const Way& way,
                    double simulated_s) const;
  double optimizer_of(const Way& way, const RankLayers& stages) const;
  void add_gradients(Forecast& forecast, const std::vector<RankLayers>& ranks) const;
  void add_failures(Forecast& forecast) const;

  const JobProfile profile_;
  const Machine machine_;
  const std::int64_t global_batch_;
  // The passes of the last way; other shard stages have the same ones.
  std::optional<Way> way_of_passes_;
  Passes passes_;
  std::int64_t num_simulations_ = 0;
};

}  // namespace paceline::planning
