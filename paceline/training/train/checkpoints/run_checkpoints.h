#pragma once

// When a training run saves its state and when it stops.
//
// Thread safety: none.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// The path of the memory that the launcher provides for a job (PACELINE_MEMORY_CHECKPOINT).
// Error(kInvalid) under a launcher that provides none.
std::string memory_path();

// Chooses when a training run saves its state and when it stops: checkpoints after a number of
// steps or after each epoch, copies in memory, an agreed stop (group/agreed_stop.h). Without a
// folder it does nothing.
//
// Ownership: the module, the optimizer and the times must outlive this object. Thread safety: none.
class RunCheckpoints {
 public:
  // Collective. `replicas`, if given, replaces CheckpointOptions::replicas. Errors of Checkpointer
  // and memory_path().
  RunCheckpoints(std::shared_ptr<ProcessGroup> group, CheckpointOptions options,
                 torch::nn::Module& module, optim::Optimizer& optimizer, PhaseTimes& times,
                 const std::shared_ptr<ProcessGroup>& replicas = nullptr);

  bool are_made() const { return checkpointer_.has_value(); }
  // Collective. Calls Checkpointer::attach() and begin(), before the first step. Requires:
  // are_made().
  std::optional<RestoredRun> begin(const RunParts& parts, std::uint64_t seed);

  // Collective. Both functions save if a checkpoint or a copy in memory is due.
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

}  // namespace paceline::train
