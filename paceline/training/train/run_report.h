#pragma once

// What a run tells of itself: a progress line while it runs, and the closing table at its end, with
// its throughput, where the time went, and how it compares with the speed of matrix products.

#include <chrono>
#include <cstdint>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/train/loop.h"

namespace paceline::train {

// The unit in which a run reports its throughput: samples, or what a sample consists of. A value.
struct SampleUnit {
  std::string name = "samples";  // or "tokens"
  std::int64_t per_sample = 1;   // how many of them a sample has
  // Floating-point operations of a sample's forward and backward pass; 0: not told. The report then
  // compares the run with the speed of matrix products (measure_matrix_speed()).
  double operations_per_sample = 0;
};

// Collective. How fast this job's ranks multiply matrices, to compare a model's speed with:
// floating-point operations a second of float32 products of 768 x 768 matrices, of all ranks
// together while all of them multiply, with the threads that each has; from the fastest product of
// each, because other programs slow down single ones. Takes about a quarter of a second. The same
// on every rank.
double measure_matrix_speed(ProcessGroup& group);

// "2:03" and "1:02:03" of so many seconds.
std::string clock_text(std::int64_t seconds);

// One line that follows the training on a terminal, plain lines elsewhere: rank 0's view, with the
// time that is left at the pace so far, evaluations and checkpoints included.
class Progress {
 public:
  // Writes to stdout. `replicas`: the ranks that have batches of their own, which scale this rank's
  // samples to the job's; a silent one writes nothing.
  Progress(std::int64_t total_steps, int replicas, bool silent, const SampleUnit& unit = {});

  void after_step(const StepReport& report);
  // Ends the line under way and writes `line` below it.
  void note(const std::string& line);

 private:
  void write(const StepReport& report);
  std::string time_left(std::int64_t step) const;

  const std::int64_t total_steps_;
  const int replicas_;
  const bool silent_;
  const SampleUnit unit_;
  const bool terminal_;
  std::chrono::steady_clock::time_point last_written_;
  std::chrono::steady_clock::time_point first_step_end_;
  std::int64_t first_step_ = -1;  // of this process
  std::int64_t samples_since_ = 0;
  bool in_line_ = false;
};

// What a finished run tells: throughput, where the time went, and which rank was slowest.
struct RunReport {
  double seconds = 0;  // of training, evaluation and checkpoints left out
  std::int64_t steps = 0;
  std::int64_t samples = 0;  // of all ranks
  double samples_per_second = 0;
  SampleUnit unit;
  PhaseTimes mean;        // over the ranks
  int slowest_rank = 0;   // the one that computed longest
  double slowest_by = 0;  // seconds above the mean
  // Operations a second of all ranks; 0: the unit tells no operations.
  double matrix_speed = 0;

  double units_per_second() const {
    return samples_per_second * static_cast<double>(unit.per_sample);
  }
  // The share of the speed of matrix products that training reached.
  double matrix_share() const {
    return matrix_speed > 0 ? samples_per_second * unit.operations_per_sample / matrix_speed : 0;
  }
  // The closing table's rows.
  std::string table() const;
};

// Collective. `samples`: of all ranks, the same on every rank. Measures the speed of matrix
// products where `unit` tells operations.
RunReport make_report(ProcessGroup& group, const PhaseTimes& times, double seconds,
                      std::int64_t steps, std::int64_t samples, const SampleUnit& unit = {});

}  // namespace paceline::train
