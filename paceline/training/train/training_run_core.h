#pragma once

// The implementation of TrainingRun.
//
// Ownership: this object refers to the parts of `Training`, which must outlive it. Thread safety:
// none.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/telemetry/metrics_log.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/optim/metadata.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/loop.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/training_run.h"
#include "paceline/training/train/training_state.h"
#include "paceline/training/train/training_step.h"

namespace paceline::train {

// The best value of a metric for each file of weights, and the epoch that had it. The checkpoints
// of a run include these values and epochs.
class BestValues {
 public:
  // Stores the value and returns true if it is lower than every earlier one for the file; false for
  // NaN. Error(kInvalid) if the file has the name of another file in another folder.
  bool take(const std::string& file, double value, std::int64_t epoch);
  // The last epoch with a new best value for any file; 0: there was none.
  std::int64_t last_epoch() const;

  optim::Metadata state() const;
  // Error(kInvalid) unless `words` is a result of state().
  void set_state(const optim::Metadata& words);

 private:
  struct Best {
    double value = 0;
    std::int64_t epoch = 0;
  };
  std::map<std::string, Best> best_;          // by file name
  std::map<std::string, std::string> paths_;  // the path of each file, by file name
};

// Chooses when a training run saves its state and when it stops: checkpoints after a number of
// steps or after each epoch, copies in memory, an agreed stop (group/agreed_stop.h). Does nothing
// if CheckpointOptions::folder is empty.
//
// Ownership: the module, the optimizer and the times must outlive this object. Thread safety: none.
class RunCheckpoints {
 public:
  // Collective. `replicas`, if given, replaces CheckpointOptions::replicas. Errors of Checkpointer;
  // Error(kInvalid) for copies in memory under a launcher that provides no memory.
  RunCheckpoints(std::shared_ptr<ProcessGroup> group, CheckpointOptions options,
                 torch::nn::Module& module, optim::Optimizer& optimizer, PhaseTimes& times,
                 const std::shared_ptr<ProcessGroup>& replicas = nullptr);

  bool are_made() const { return checkpointer_.has_value(); }
  // Collective. Calls Checkpointer::attach() and begin(), before the first step. Requires:
  // are_made().
  std::optional<RestoredRun> begin(const RunParts& parts, std::uint64_t seed);

  // Collective. Save a checkpoint if one is due; after_step() also makes due copies in memory.
  void after_step(const TrainingState& state);
  void after_epoch(const TrainingState& state);
  // Collective. Saves this state unless it has already been saved, and waits until it is on the
  // disk. Returns false on every rank when a save has failed.
  bool finish(const TrainingState& state);

  // Collective. Whether the ranks must stop after this step; if so, stop_reason() returns the
  // reason.
  bool stop_requested() { return stop_ && stop_->requested(*group_); }
  std::string stop_reason() const { return stop_ ? stop_->reason() : std::string(); }
  // See Checkpointer::checkpoints_that_fit().
  std::optional<int> checkpoints_that_fit() const;

 private:
  void save(const TrainingState& state);

  const std::shared_ptr<ProcessGroup> group_;  // shared with the user
  CheckpointOptions options_;
  torch::nn::Module& module_;
  optim::Optimizer& optimizer_;
  PhaseTimes& times_;
  std::optional<Checkpointer> checkpointer_;
  std::optional<AgreedStop> stop_;  // set by begin()
  std::int64_t saved_step_ = -1;  // the last step whose checkpoint is on the disk or being written
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
  double last_loss_ = 0;      // the loss of the last step; 0 before the first step
  bool ended_by_program_ = false;
  bool results_differ_ = false;  // between the ranks
  double seconds_ = 0;           // time of training
};

}  // namespace paceline::train
