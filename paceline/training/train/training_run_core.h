#pragma once

// The implementation of TrainingRun.
//
// Ownership: this object refers to the parts of `Training`, which must outlive it. Thread safety:
// none.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "paceline/engine/telemetry/metrics_log.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/optim/metadata.h"
#include "paceline/training/train/checkpoints/run_checkpoints.h"
#include "paceline/training/train/loop.h"
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/training_run.h"
#include "paceline/training/train/training_state.h"
#include "paceline/training/train/training_step.h"

namespace paceline::train {

// The best value of a metric for each file of weights, and the epoch that had it. A checkpoint of
// the run has them too.
class BestValues {
 public:
  // Takes the value if it is lower than every earlier one for the file; NaN never is.
  bool take(const std::string& file, double value, std::int64_t epoch);
  // The last epoch with a new best value for any file; 0: there was none.
  std::int64_t last_epoch() const;

  optim::Metadata state() const;
  // Error(kInvalid) for words that are not from state().
  void set_state(const optim::Metadata& words);

 private:
  struct Best {
    double value = 0;
    std::int64_t epoch = 0;
  };
  std::map<std::string, Best> best_;          // by file name
  std::map<std::string, std::string> paths_;  // of the files, by file name
};

class TrainingRunCore {
 public:
  TrainingRunCore(std::shared_ptr<ProcessGroup> group, const Training& training,
                  const TrainingRunOptions& options);

  int train();

  const TrainingState& state() const { return state_; }
  const TestResult& result() const { return result_; }

 private:
  bool is_first() const { return group_->rank() == 0; }
  ProcessGroup& replicas() const { return training_.replicas ? *training_.replicas : *group_; }
  bool is_divided() const { return replicas().world_size() < group_->world_size(); }
  std::int64_t num_steps() const;
  int write_profile(const std::filesystem::path& file);
  void open_files();
  void begin_or_resume();
  void take_state(const TrainingState& restored);
  void take_seed(std::uint64_t given);
  double checkpoint_bytes() const;
  void take_step();
  void after_step(const StepReport& report);
  Next after_epoch();
  void evaluate();
  void compare_results();
  int stop();
  void print_table();
  void write_weights_to(const std::string& file);
  void write_final_weights();
  std::string options_of_longer_run() const;
  std::string next_command() const;

  const TrainingRunOptions options_;
  const std::shared_ptr<ProcessGroup> group_;  // shared with the user
  const Training training_;
  optim::Optimizer& optimizer_;
  TrainingState state_;
  std::unique_ptr<data::DataLoader> loader_;
  TrainingStep step_;
  PhaseTimes times_;
  RunCheckpoints checkpoints_;
  RunMemory memory_;
  ProgressBar progress_;
  MetricsLog metrics_;
  TensorBoardLog scalars_;
  TestResult result_;
  BestValues best_;
  std::int64_t evaluated_step_ = -1;
  std::int64_t first_step_ = 0;
  std::int64_t samples_ = 0;  // samples of this rank
  double last_loss_ = 0;      // of the last step, or 0
  bool program_ended_it_ = false;
  bool results_differ_ = false;  // between the ranks
  double seconds_ = 0;           // time of training
};

}  // namespace paceline::train
