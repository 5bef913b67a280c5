#pragma once

// Predicts a step of a job for one way to divide the job among ranks (Way): the time of the step
// and of each part of it, such as pipeline bubbles and exposed communication; the memory; and the
// goodput under failures.
//
// The model. Each replica computes its share of the global batch in micro-batches. The profile has
// the time of a layer's pass; the divisible part of this time is divided by the number of
// tensor-parallel ranks, and the all-reduces between these ranks are added. A pipeline is simulated
// (planning/schedules/simulate.h); if the schedule is kSearched, the simulation uses the schedule
// that the search finds. If a host has fewer cores than its ranks have threads, all its ranks share
// the cores (step_parts.h). Gradients are exchanged bucket by bucket during the last backward pass
// (step_parts.h), in a pipeline after the last pass. The step also contains the CPU time of the
// exchange, mostly for sums in shared memory. From shard stage 1 on, the replicas divide the
// optimizer's step and then gather the updated parameters. The slowest of all ranks determines the
// time of the passes (step_parts.h).
//
// Thread safety: none; use one Forecaster in each thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "paceline/planning/forecast/memory_plan.h"
#include "paceline/planning/forecast/way.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::planning {

// The parts of a step, in seconds.
struct StepTimes {
  double compute = 0;     // forward and backward passes, the mean of all ranks
  double bubble = 0;      // waiting for other stages of the pipeline
  double exchange = 0;    // all-reduces of tensor parallelism
  double gradients = 0;   // exposed exchange of gradients and updated parameters
  double optimizer = 0;   // the optimizer's step
  double stragglers = 0;  // waiting for the slowest rank
  double other = 0;       // loading data, and the rest of the loop

  // The time of the whole step.
  double all() const {
    return compute + bubble + exchange + gradients + optimizer + stragglers + other;
  }
};

struct Forecast {
  Way way;  // how the job is divided among ranks
  StepTimes times;
  double hidden_s = 0;  // seconds of the gradients' exchange that the backward pass hides
  MemoryPlan memory;
  bool fits = true;    // whether the machine has this memory
  double goodput = 1;  // the share of the time that is not lost to failures and checkpoints
  // Seconds between checkpoints; 0: the machine has no failures (mtbf_s is 0).
  double interval_s = 0;
  std::int64_t samples_per_step = 0;

  double step_s() const { return times.all(); }
  // The throughput, reduced by what failures and checkpoints cost.
  double samples_per_second() const {
    return static_cast<double>(samples_per_step) * goodput / step_s();
  }
};

class Forecaster {
 public:
  // `global_batch`: the number of samples in a step, over all replicas. Error(kInvalid) if it is
  // not positive, or if require_valid() refuses the profile.
  Forecaster(const JobProfile& profile, const Machine& machine, std::int64_t global_batch);

  // Error(kInvalid), with the text of why_not(), if the job cannot be divided in this way.
  Forecast forecast(const Way& way);
  // The number of pipelines that have been simulated so far.
  std::int64_t num_simulations() const { return num_simulations_; }

 private:
  // The passes of all micro-batches of a step.
  struct Passes {
    std::vector<RankLayers> ranks;                 // [pipeline rank]: its layers
    double compute = 0, bubble = 0, exchange = 0;  // as in StepTimes
    std::vector<double> kept;  // [pipeline rank]: bytes of activations at the peak
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
  void add_gradient_exchange(Forecast& forecast, const std::vector<RankLayers>& ranks) const;
  void add_failures(Forecast& forecast) const;

  const JobProfile profile_;
  const Machine machine_;
  const std::int64_t global_batch_;
  // The last way and its passes. They are used again for ways that differ only in the shard stage,
  // because these have the same passes.
  std::optional<Way> way_of_passes_;
  Passes passes_;
  std::int64_t num_simulations_ = 0;
};

}  // namespace paceline::planning
