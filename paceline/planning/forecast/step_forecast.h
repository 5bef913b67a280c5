#pragma once

// Predicts a step of a job that is divided in some way: its time with the shares of bubble and
// exposed communication, its memory, and the goodput under failures.
//
// The model. A replica computes its share of the global batch in micro-batches. A layer's pass
// takes the time in the profile, with the divisible part shared by the ranks of tp, plus the
// all-reduces between these ranks. A pipeline is simulated (planning/schedules/simulate.h), with
// the plan that the search finds if the schedule is kSearched. If a host has fewer cores than its
// ranks have threads, all its ranks share the cores (step_parts.h). Gradients are exchanged bucket
// by bucket during the last backward pass (step_parts.h), or after it in a pipeline; the CPU time
// of the exchange, mostly sums in shared memory, adds to the step. From shard stage 1 on the
// optimizer's step is divided, and the updated parameters are then gathered. The slowest of all
// ranks determines the time of the passes (step_parts.h).
//
// Thread safety: none; use one Forecaster in each thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "paceline/planning/forecast/memory_plan.h"
#include "paceline/planning/forecast/way.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::planning {

// The parts of a step in seconds; their sum is the step.
struct StepTimes {
  double compute = 0;    // the passes, as the mean over all ranks
  double bubble = 0;     // waiting for other stages
  double exchange = 0;   // exchanges of tensor parallelism
  double gradients = 0;  // exposed exchange of gradients and updated parameters
  double optimizer = 0;
  double stragglers = 0;  // waiting for the slowest rank
  double other = 0;       // data, and the rest of the loop

  double all() const {
    return compute + bubble + exchange + gradients + optimizer + stragglers + other;
  }
};

struct Forecast {
  Way way;
  StepTimes times;
  double hidden_s = 0;  // the part of the gradients' exchange that the backward pass hides
  MemoryPlan memory;
  bool fits = true;
  double goodput = 1;  // the share of time that failures and checkpoints leave
  // Seconds between checkpoints; 0: the machine has no failures (mtbf_s is 0).
  double interval_s = 0;
  std::int64_t samples_per_step = 0;

  double step_s() const { return times.all(); }
  // The throughput, including the loss to failures.
  double samples_per_second() const {
    return static_cast<double>(samples_per_step) * goodput / step_s();
  }
};

class Forecaster {
 public:
  // `global_batch`: the samples of a step of all replicas together. Throws Error(kInvalid) as
  // require_valid() does.
  Forecaster(const JobProfile& profile, const Machine& machine, std::int64_t global_batch);

  // Throws Error(kInvalid) with the text of why_not() for an impossible way.
  Forecast forecast(const Way& way);
  // The number of pipelines that have been simulated so far.
  std::int64_t num_simulations() const { return num_simulations_; }

 private:
  // The passes of all micro-batches of a step.
  struct Passes {
    std::vector<RankLayers> ranks;  // of each pipeline rank
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
  double seconds_of(const PipelineSchedule& plan, const pipeline::Costs& costs, const Way& way,
                    double simulated_s) const;
  double optimizer_of(const Way& way, const RankLayers& stages) const;
  void add_gradients(Forecast& forecast, const std::vector<RankLayers>& ranks) const;
  void add_failures(Forecast& forecast) const;

  const JobProfile profile_;
  const Machine machine_;
  const std::int64_t global_batch_;
  // The passes of the last way, kept because ways that differ only in the shard stage have the same
  // passes.
  std::optional<Way> way_of_passes_;
  Passes passes_;
  std::int64_t num_simulations_ = 0;
};

}  // namespace paceline::planning
