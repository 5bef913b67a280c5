#pragma once

// The implementation of Checkpointer, which also decides which state a starting job may continue.
//
// Ownership: the parts that are attached must outlive this object. Thread safety: none.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/checkpoint_team.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/files/checkpoint/memory_checkpoint.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/checkpoints/attached_state.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/checkpoints/run_boxes.h"
#include "paceline/training/train/checkpoints/run_snapshot.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// The origin of the newest checkpoint in a directory, as far as it can be read.
struct FoundOrigin {
  std::int64_t step = 0;
  std::string run;  // empty: unknown
  std::optional<std::uint64_t> seed;
};

// The state in a directory, or in the memory of a rank.
struct FoundState {
  std::optional<std::int64_t> step;        // the newest step; nullopt: there is no state
  std::optional<RunMark> mark;             // the run to which it belongs, if that is known
  std::optional<FoundOrigin> newest = {};  // only in a directory
};

struct FoundStates {
  std::string directory;  // the path, for messages
  FoundState on_disk;
  std::vector<FoundState> in_memory;  // [rank]; set only for the first rank of each host's memory
};

struct JobStart {
  std::string job;         // the launcher's name for the job
  bool restarted = false;  // the launcher restarted the job after a failure
  bool resume = false;     // the user asked to continue a run
  bool other_run = false;  // continue the newest checkpoint even if it belongs to another run
};

struct Ownership {
  std::string run;  // the run to continue; empty: a new run, or the run of an unmarked directory
  std::optional<std::uint64_t> seed;  // the seed of that run, if it is known
  std::vector<int> stale_memory;      // ranks whose memory holds another run, because their hosts
                                      // joined later; they must discard it
};

// Decides whether a starting job may continue the state that it finds. The newest step alone does
// not show that, because a directory, or a memory that the user named, may hold the state of an
// older job.
//
//   a first start               requires that no state exists: a state would be another job's
//   a first start that resumes  continues the run of the directory, or, without one, the run of the
//                               newest memory; refuses a newest checkpoint of another run, unless
//                               `other_run` is set
//   a restart by the launcher   continues the run that its own job began, or begins one
//
// Error(kInvalid), with advice, when the state does not belong to this job. Pure: all ranks make
// the same decision from the same facts.
Ownership find_ownership(const JobStart& start, const FoundStates& found);

class CheckpointerCore {
 public:
  CheckpointerCore(std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options);
  void attach(const RunParts& parts) { parts_ = parts; }
  void attach(const std::string& name, std::shared_ptr<torch::nn::Module> module);
  void attach(const std::string& name, optim::Optimizer& optimizer);
  void attach(const std::string& name, optim::ExponentialMovingAverage& average);
  void attach(const std::string& name, torch::optim::Optimizer& optimizer);
  void attach(const std::string& name, torch::optim::StepLR& schedule);
  void attach(const std::string& name, data::DataLoader& loader);
  void attach_reducer(Reducer& reducer);
  void add_state(AttachedState state, const void* part = nullptr);

  std::int64_t begin(std::uint64_t seed);
  bool save(std::int64_t step);
  bool save_to_memory(std::int64_t step);
  std::optional<RestoredRun> begin(torch::nn::Module& module, optim::Optimizer& optimizer,
                                   std::uint64_t seed);
  bool save(const TrainingState& state, const torch::nn::Module& module,
            const optim::Optimizer& optimizer);
  std::uint64_t bytes_read() const { return bytes_read_; }
  bool finish();
  std::optional<int> checkpoints_that_fit() const;
  bool save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                      const optim::Optimizer& optimizer);
  std::optional<RestoredRun> restore(torch::nn::Module& module, optim::Optimizer& optimizer);

 private:
  // A rank's part of a saved run that has been read but not yet applied.
  struct Staged;

  // The whole run; `optimizer`: null if the run has none of Paceline's optimizers.
  struct View {
    torch::nn::Module& module;
    optim::Optimizer* optimizer;
  };
  View attached() const;
  void require_same_parts() const;
  void require_optimizer() const;
  void require_same_model() const;
  void take_name(const std::string& name, const void* part);
  TrainingState state_after(std::int64_t step) const;
  std::optional<RestoredRun> begin(const View& run, std::uint64_t seed);
  bool save(const TrainingState& state, const torch::nn::Module& module,
            const optim::Optimizer* optimizer);
  bool save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                      const optim::Optimizer* optimizer);
  std::optional<RestoredRun> restore(const View& run);
  void require_sound(const TrainingState& state, const torch::nn::Module& module,
                     const optim::Optimizer* optimizer) const;
  RunShare own_share() const;
  void add_states_of_ranks(RunBoxes& run) const;
  bool is_divided() const { return replicas_->world_size() < group_->world_size(); }
  FoundStates find_states();
  void disown(const JobStart& start, const FoundStates& found);
  FoundState find_on_disk() const;
  void take_run(const JobStart& start, const Ownership& own, const FoundStates& found,
                std::uint64_t seed);
  void require_run(const Manifest& saved, const RunBoxes& boxes,
                   const optim::Optimizer* optimizer) const;
  Staged stage(const Manifest& saved, const RunBoxes& boxes) const;
  void take_over(const Manifest& saved, const Staged& staged, const RunBoxes& boxes,
                 const View& run);

  const std::shared_ptr<ProcessGroup> group_;     // shared with the user
  const std::shared_ptr<ProcessGroup> replicas_;  // shared with the user
  const CheckpointOptions options_;
  RunParts parts_;
  std::set<std::string> names_;  // names of the attached parts
  std::map<const void*, std::string> part_names_;
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules_;
  std::shared_ptr<torch::nn::Module> whole_;  // has all modules_; set by begin()
  optim::Optimizer* optimizer_ = nullptr;     // null: none is attached
  std::uint64_t seed_ = 0;                    // the seed of a run with attached parts
  CheckpointTeam team_;
  std::optional<MemoryTeam> memory_;  // set on all ranks or on none
  RunMark mark_;                      // set by begin()
  std::uint64_t bytes_read_ = 0;
};

}  // namespace paceline::train
