#pragma once

// The reports of a run: a progress line while it runs, and a closing table at its end with its
// throughput, where the time went, how it compares with the speed of matrix products, and its
// memory (RunMemory), as planned after the first step and as measured.
//
// The plan of a rank adds up
//
//   parameters   those of the optimizer; of one copy a host, the rank's share of it
//   gradients    as the optimizer's first step found them
//   optimizer    its state
//   activations  all other tensors that were alive at the peak of the first step, counted as they
//                were made (TensorMemoryMeter)
//   working      the copy that a checkpoint is written from
//   process      everything else: what the process had before the step besides parameters and
//                state, or has after it besides all of the above, whichever is more; of libraries,
//                the rank's share among the ranks of its host
//
// The memory that a rank takes is counted in proportional sets, in which a page of N processes
// counts as an Nth, so that the ranks of a host add up. The peak is the memory at the end plus what
// the process has given back since its resident set was largest. A larger peak before the first
// step is not counted.
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
  double shared = 0;         // proportional: files in memory, such as symmetric memory
  double files = 0;          // files on a disk, such as libraries, each page whole
  double resident = 0;       // all pages, each whole
  double peak_resident = 0;  // the most since the process began

  double own() const { return anonymous + shared; }
};

// Returns the memory of this process; nothing if the kernel does not report all of it.
std::optional<OwnMemory> own_memory();

// Planned and measured memory, in bytes.
struct MemoryReport {
  planning::RankMemory rank;  // the plan of the rank with the largest plan
  double rank_peak = 0;       // the peak of that rank
  double host_planned = 0;    // the plan of the host with the largest plan
  double host_peak = 0;

  // Returns the closing table's rows.
  std::string table() const;
};

class RunMemory {
 public:
  // Call these functions in this order: before the first step; in the step, between gradients and
  // optimizer; after the step, with the gradients gone. Later calls do nothing. There is no plan if
  // something else counts tensors already, such as another rank of this process, or if the kernel
  // reports too little.
  void begin(const optim::Optimizer& optimizer);
  void count_gradients(const optim::Optimizer& optimizer);
  // `checkpoint_bytes`: the size of the copy that this rank writes a checkpoint from; 0: none are
  // made.
  void plan(const optim::Optimizer& optimizer, double checkpoint_bytes);

  // Collective, at the end. Returns the same on every rank; nothing if any rank has no plan.
  std::optional<MemoryReport> report(ProcessGroup& group) const;

 private:
  std::optional<TensorMemoryMeter> meter_;  // of the first step
  std::optional<double> gradient_bytes_;
  double process_before_ = 0;
  double resident_peak_before_ = 0;
  std::optional<planning::RankMemory> plan_;
  double library_bytes_ = 0;  // besides the plan, for all ranks of the host
};

// The unit in which a run reports its throughput: samples, or the elements of a sample. A value.
struct SampleUnit {
  std::string name = "samples";  // or "tokens"
  std::int64_t per_sample = 1;   // the number of units in a sample
  // Floating-point operations of a sample's forward and backward pass; 0: unknown. If it is known,
  // the report compares the run with the speed of matrix products (measure_matrix_speed()).
  double operations_per_sample = 0;
};

// Collective. Measures how fast this job's ranks multiply matrices, to compare a model's speed
// with: floating-point operations a second in float32 products of 768 x 768 matrices, of all ranks
// together while all of them multiply, with the threads that each has. Takes the fastest product of
// each rank, because other programs slow down single ones. Takes about a quarter of a second.
// Returns the same on every rank.
double measure_matrix_speed(ProcessGroup& group);

// Formats a number of seconds as "2:03" or "1:02:03".
std::string clock_text(std::int64_t seconds);

// A line that follows the training on a terminal, or plain lines elsewhere: rank 0's view, with the
// time that is left at the pace so far, evaluations and checkpoints included.
class Progress {
 public:
  // Writes to stdout, or nothing if `silent`. `replicas`: the number of ranks with batches of their
  // own, which scales this rank's samples to the job's.
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

// The results of a finished run: throughput, where the time went, and which rank was slowest.
struct RunReport {
  double seconds = 0;  // of training, without evaluation and checkpoints
  std::int64_t steps = 0;
  std::int64_t samples = 0;  // of all ranks
  double samples_per_second = 0;
  SampleUnit unit;
  PhaseTimes mean;        // over the ranks
  int slowest_rank = 0;   // the rank that computed longest
  double slowest_by = 0;  // seconds above the mean
  // Operations a second of all ranks; 0: the unit has no number of operations.
  double matrix_speed = 0;

  double units_per_second() const {
    return samples_per_second * static_cast<double>(unit.per_sample);
  }
  // The share of the speed of matrix products that training reached.
  double matrix_share() const {
    return matrix_speed > 0 ? samples_per_second * unit.operations_per_sample / matrix_speed : 0;
  }
  // Returns the closing table's rows.
  std::string table() const;
};

// Collective: makes the report of a finished run. `samples`: of all ranks, the same on every rank.
// Measures the speed of matrix products if `unit` has a number of operations.
RunReport make_report(ProcessGroup& group, const PhaseTimes& times, double seconds,
                      std::int64_t steps, std::int64_t samples, const SampleUnit& unit = {});

}  // namespace paceline::train
