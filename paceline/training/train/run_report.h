#pragma once

// The reports of a run: a progress line while it runs, and a closing table at its end with its
// throughput, the time of each phase, a comparison with the speed of matrix products, and the run's
// memory (RunMemory), as planned after the first step and as measured.
//
// The plan of a rank is the sum of
//
//   parameters   the optimizer's parameters; if a host has one copy, the rank's share of it
//   gradients    as found at the optimizer's first step
//   optimizer    the optimizer's state
//   activations  all other tensors that were alive at the peak of the first step, counted as they
//                were made (TensorMemoryMeter)
//   working      the copy from which a checkpoint is written
//   process      everything else: the process's memory before the step without parameters and
//                state, or its memory after the step without the first four rows, whichever is
//                larger; plus its pages of libraries, divided by the number of ranks on its host
//
// The memory that a rank uses is measured as its proportional set size, in which a page that N
// processes share counts as an Nth, so that the numbers of a host's ranks can be added up. The peak
// is the memory at the end plus the memory that the process has returned since its resident set was
// largest. A larger peak before the first step is not counted.
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
#include "paceline/training/tensor/tensor_allocator.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/loop.h"
#include "paceline/training/train/training_run.h"

namespace paceline::train {

// The memory of this process in bytes, as the kernel counts it (proc_pid_smaps(5),
// proc_pid_status(5)). In a proportional number a page that N processes share counts as an Nth.
struct OwnMemory {
  double anonymous = 0;      // proportional
  double shared = 0;         // proportional: files in memory, for instance symmetric memory
  double files = 0;          // files on a disk, for instance libraries; every page counts fully
  double resident = 0;       // all pages; every page counts fully
  double peak_resident = 0;  // the largest resident set since the process began

  double own() const { return anonymous + shared; }
};

// Returns the memory of this process; nullopt if the kernel does not report all of it.
std::optional<OwnMemory> own_memory();

// Planned and measured memory, in bytes.
struct MemoryReport {
  planning::RankMemory rank;  // the plan of the rank with the largest plan
  double rank_peak = 0;       // the peak of that rank
  double host_planned = 0;    // the plan of the host with the largest plan
  double host_peak = 0;

  // Returns rows for the closing table.
  std::string table() const;
};

class RunMemory {
 public:
  // Call these functions in this order: begin() before the first step; count_gradients() in the
  // step, between gradients and optimizer; plan() after the step, when the gradients have been
  // dropped. Later calls do nothing. There is no plan if other code already counts tensors, for
  // instance another rank of this process, or if the kernel does not report enough.
  void begin(const optim::Optimizer& optimizer);
  void count_gradients(const optim::Optimizer& optimizer);
  // `checkpoint_bytes`: the size of the copy from which this rank writes a checkpoint; 0: the run
  // makes no checkpoints.
  void plan(const optim::Optimizer& optimizer, double checkpoint_bytes);

  // Collective; call it at the end. Returns the same on every rank; nullopt if any rank has no
  // plan.
  std::optional<MemoryReport> report(ProcessGroup& group) const;

 private:
  std::optional<TensorMemoryMeter> meter_;  // alive during the first step
  std::optional<double> gradient_bytes_;
  double process_before_ = 0;
  double resident_peak_before_ = 0;
  std::optional<planning::RankMemory> plan_;
  double library_bytes_ = 0;  // shared by all ranks of the host; not in the plan
};

// Collective. Measures how fast this job's ranks multiply matrices, for a comparison with a model's
// speed: floating-point operations per second in float32 products of 768 x 768 matrices, for all
// ranks together while all of them multiply, each with its own number of threads. Uses the fastest
// product of each rank, because other programs may slow down single products. Takes about a quarter
// of a second. Returns the same on every rank.
double measure_matrix_speed(GroupRef group);

// Formats a number of seconds as "2:03" or "1:02:03".
std::string clock_text(std::int64_t seconds);

// A line that is updated during the training on a terminal, or plain lines elsewhere. It shows rank
// 0's view, with the remaining time at the pace so far, including evaluations and checkpoints.
class ProgressBar {
 public:
  // Writes to stdout, or writes nothing if `silent`. `replicas`: the number of ranks with different
  // batches; this rank's samples are multiplied by it to get those of the job.
  ProgressBar(std::int64_t total_steps, int replicas, bool silent, const SampleUnit& unit = {});

  void after_step(const StepReport& report);
  // Ends the current line and writes `line` below it.
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
  std::int64_t first_step_ = -1;  // the first step of this process
  std::int64_t samples_since_ = 0;
  bool in_line_ = false;
};

// The results of a finished run: throughput, the time of each phase, and the slowest rank.
struct RunReport {
  double seconds = 0;  // time of training, without evaluations and checkpoints
  std::int64_t steps = 0;
  std::int64_t samples = 0;  // samples of all ranks
  double samples_per_second = 0;
  SampleUnit unit;
  PhaseTimes mean;        // the mean over the ranks
  int slowest_rank = 0;   // the rank with the longest computing time
  double slowest_by = 0;  // seconds above the mean
  // Operations per second of all ranks together; 0: `unit` has no number of operations.
  double matrix_speed = 0;

  double units_per_second() const {
    return samples_per_second * static_cast<double>(unit.per_sample);
  }
  // The speed of the training as a fraction of the speed of matrix products; 0: unknown.
  double matrix_share() const {
    return matrix_speed > 0 ? samples_per_second * unit.operations_per_sample / matrix_speed : 0;
  }
  // Returns rows for the closing table.
  std::string table() const;
};

// Collective: makes the report of a finished run. `samples`: the samples of all ranks, the same
// number on every rank. Measures the speed of matrix products if `unit` has a number of operations.
RunReport make_report(GroupRef group, const PhaseTimes& times, double seconds, std::int64_t steps,
                      std::int64_t samples, const SampleUnit& unit = {});

// Returns a line of a closing table, including the newline.
std::string table_row(const std::string& name, const std::string& value);
std::string table_of(const TestResult& result);

// Throws Error(kInvalid), which names the sample of `dataset`, if a label (int64 [B]) is not in [0,
// classes). Labels of another type, such as soft labels, are not checked.
void require_labels(const data::Batch& batch, std::int64_t classes, const std::string& dataset);

}  // namespace paceline::train
