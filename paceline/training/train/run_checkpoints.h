#pragma once

// When a training run saves its state, and how it is asked to stop: checkpoints after every so many
// steps or each epoch, copies in memory, an agreed stop (group/agreed_stop.h). Without a folder it
// does nothing.
//
// Ownership: it refers to the module, the optimizer and the times, which outlive it. Thread safety:
// none.

#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/train/checkpointer.h"

namespace paceline::train {

struct CheckpointOptions {
  std::string folder;             // empty: none are made
  std::int64_t every = 0;         // steps; 0: at each epoch's end
  std::int64_t memory_every = 0;  // steps between copies in memory; 0: none
  bool resume = false;            // as BeginOptions has them
  bool resume_other_run = false;
  std::string stop_file;  // AgreedStopOptions::file
};

class RunCheckpoints {
 public:
  // Collective. `replicas`: CheckpointerOptions::replicas. Errors: those of Checkpointer and
  // memory_path().
  RunCheckpoints(std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options,
                 torch::nn::Module& module, optim::Optimizer& optimizer, PhaseTimes& times,
                 std::shared_ptr<ProcessGroup> replicas = nullptr);

  bool are_made() const { return checkpointer_.has_value(); }
  // Collective, before the first step, where they are made. As Checkpointer::attach() and begin().
  std::optional<RestoredRun> begin(const RunParts& parts, std::uint64_t seed);

  // Collective, all of them. Save what is due.
  void after_step(const TrainingState& state);
  void after_epoch(const TrainingState& state);
  // Collective. Saves this state too, if it is not, and waits until everything is on the disk;
  // false, on every rank, when something is not.
  bool finish(const TrainingState& state);

  // Collective: whether the ranks are to stop after this step, and by what.
  bool stop_requested() { return stop_ && stop_->requested(*group_); }
  std::string stop_reason() const { return stop_ ? stop_->reason() : std::string(); }
  // As Checkpointer's.
  std::optional<int> room_on_disk() const;

 private:
  void save(const TrainingState& state);

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  const CheckpointOptions options_;
  torch::nn::Module& module_;
  optim::Optimizer& optimizer_;
  PhaseTimes& times_;
  std::optional<Checkpointer> checkpointer_;
  std::optional<AgreedStop> stop_;  // where there is a place to save to
  std::int64_t saved_step_ = -1;    // on the disk
};

}  // namespace paceline::train
