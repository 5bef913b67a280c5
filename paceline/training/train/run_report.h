#pragma once

// What a run tells of itself: a progress line while it runs, and the closing table at its end, with
// its throughput, where the time went, how it compares with the speed of matrix products, and its
// memory (RunMemory): what it would take, planned when the first step had been taken, and what it
// took.
//
// The plan of a rank adds up
//
//   parameters   those of the optimizer; of one copy a host, the rank's share of it
//   gradients    as the optimizer's first step found them
//   optimizer    its state
//   activations  all other tensors that were alive at the peak of the first step, counted as they
//                were made (TensorMemoryMeter)
//   working      the copy that a checkpoint is written from
//   process      all else: what the process had before the step beside parameters and state, or
//                what it has after it beside all of the above, whichever is more; of libraries, the
//                rank's share among those of its host
//
// What a rank takes is counted in proportional sets, in which a page of N processes counts as an
// Nth, so that the ranks of a host add up. The peak is what it has at the end, with what it gave
// back since its resident set was largest. Not counted: what was larger before the first step.
//
// Thread safety: none.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/planning/forecast/memory_plan.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/train/loop.h"

namespace paceline::train {

// The memory of this process in bytes, as the kernel counts it (proc_pid_smaps(5),
// proc_pid_status(5)). A page that N processes have counts as an Nth in a proportional set.
struct OwnMemory {
  double anonymous = 0;      // proportional
  double shared = 0;         // proportional: of files in memory, such as symmetric memory
  double files = 0;          // of files on a disk, such as libraries, each page whole
  double resident = 0;       // all pages, each whole
  double peak_resident = 0;  // the most since the process began

  double own() const { return anonymous + shared; }
};

// Nothing where the kernel does not tell all of it.
std::optional<OwnMemory> own_memory();

// Bytes.
struct MemoryReport {
  planning::RankMemory rank;  // the plan of the rank for which most was planned
  double rank_peak = 0;       // what that rank took
  double host_planned = 0;    // of the host for which most was planned
  double host_peak = 0;

  // The closing table's rows.
  std::string table() const;
};

class RunMemory {
 public:
  // In this order: before the first step, in it between gradients and optimizer, after it with the
  // gradients gone; what comes later does nothing. There is no plan where something else counts
  // tensors already, as another rank of this process does, or the kernel tells too little.
  void begin(const optim::Optimizer& optimizer);
  void count_gradients(const optim::Optimizer& optimizer);
  // `checkpoint_bytes`: of the copy that this rank writes a checkpoint from; 0: none are made.
  void plan(const optim::Optimizer& optimizer, double checkpoint_bytes);

  // Collective, at the end. The same on every rank; nothing where some rank has no plan.
  std::optional<MemoryReport> report(ProcessGroup& group) const;

 private:
  std::optional<TensorMemoryMeter> meter_;  // of the first step
  std::optional<double> gradient_bytes_;
  double process_before_ = 0;
  double resident_peak_before_ = 0;
  std::optional<planning::RankMemory> plan_;
  double library_bytes_ = 0;  // beside that, for all ranks of the host
};

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
