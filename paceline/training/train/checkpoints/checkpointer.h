#pragma once

// Checkpoints of a whole training run: whose state a starting job may continue (find_ownership()),
// saving and restoring (Checkpointer), and when a run saves and stops (RunCheckpoints).

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/checkpoint_team.h"
#include "paceline/files/checkpoint/memory_checkpoint.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/checkpoints/run_boxes.h"
#include "paceline/training/train/checkpoints/run_snapshot.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

// Where the newest checkpoint of a directory comes from, as far as that can be read.
struct FoundOrigin {
  std::int64_t step = 0;
  std::string run;  // empty: not known
  std::optional<std::uint64_t> seed;
};

// The state in one place.
struct FoundState {
  std::optional<std::int64_t> step;        // the newest; nothing: no state
  std::optional<RunMark> mark;             // whose it is, where that is known
  std::optional<FoundOrigin> newest = {};  // of a directory
};

struct FoundStates {
  std::string directory;  // its name
  FoundState on_disk;
  std::vector<FoundState> in_memory;  // by rank; one of each host may have some
};

struct JobStart {
  std::string job;         // the launcher's name for it
  bool restarted = false;  // by the launcher, after a failure
  bool resume = false;     // the user asked to continue
  bool other_run = false;  // also when the newest checkpoint is another run's
};

struct Ownership {
  std::string run;                    // that the job continues; empty: it begins one, or takes a
                                      // directory's of which none is known
  std::optional<std::uint64_t> seed;  // that run's, where it is known
  std::vector<int> stale_memory;      // ranks of hosts that came later, with memory of another run,
                                      // which is to be forgotten
};

// Whether the state that a starting job finds is its own to go on with. The newest step alone does
// not say so: a directory, or a memory that the user named, may hold an older job's.
//
//   a first start               needs places without any state: state there is somebody else's
//   a first start that resumes  continues the run of the directory, or without one that of the
//                               newest memory; refuses a newest checkpoint of another run, unless
//                               it was told to take that one
//   a restart by the launcher   continues the run that its own job began, or begins it
//
// Error(kInvalid), with what to do, when something is there that is not this job's. Pure: all ranks
// come to the same answer from the same facts.
Ownership find_ownership(const JobStart& start, const FoundStates& found);

// What a run wants of its checkpoints. Checkpointer alone ignores the fields of RunCheckpoints.
struct CheckpointOptions {
  std::string folder;             // empty: RunCheckpoints makes none
  int keep = 3;                   // checkpoints on the disk
  std::int64_t every = 0;         // RunCheckpoints: steps; 0: at each epoch's end
  std::int64_t memory_every = 0;  // RunCheckpoints: steps between copies in memory; 0: none
  // MemoryTeam's path, the same for the ranks of a host; empty: none. RunCheckpoints takes
  // memory_path() when it needs one and none is given.
  std::string memory;
  // Compares all replicas' parameters before each save. For those that differ on purpose: false;
  // the first one's are saved then.
  bool compare_replicas = true;
  // The ranks that hold the same parts of a model that is divided among the others
  // (DeviceMesh::group("dp")); null: all.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
  bool resume = false;            // begin() continues what is there
  bool resume_other_run = false;  // also a newest checkpoint of another run than the directory's,
                                  // whose run the directory's then becomes
  std::string stop_file;          // RunCheckpoints: AgreedStopOptions::file
};

// Where the launcher keeps a job's state in memory (PACELINE_MEMORY_CHECKPOINT). Error(kInvalid)
// under a launcher that keeps none.
std::string memory_path();

struct RestoredRun {
  TrainingState state;
  bool from_memory = false;
};

// Saves and restores a whole training run: parameters, buffers, optimizer with its learning rates,
// schedule, loss scaler, average of the weights and communication hook (attach()), position in the
// data, and every rank's random state. A run that was interrupted and resumed ends with the same
// bits as one that was not, given the same number of ranks. With another number a hook's residuals
// become their mean on every rank (training/parallel/communication_hook.h), and ranks that the
// saved run did not have keep the random state of their seed. Buffers that differ (BatchNorm's
// statistics) are those of the first replica: what all ranks evaluate and go on with
// (DistributedDataParallel).
//
// A checkpoint consists of boxes of whole tensors (run_boxes.h), so that the run goes on with any
// number of ranks and hosts and any division of model and optimizer, whichever saved it. Each rank
// writes, in the background, and reads what it holds, all at the same time (checkpoint_team.h). In
// memory a host keeps what its own ranks write and what those of another one do, so that the loss
// of one loses nothing (memory_checkpoint.h). No rank needs memory for more of the run than it
// holds.
//
// A training begins with begin(), which sees to it that the state it goes on with is its own.
//
// Thread safety: none.
class Checkpointer {
 public:
  // Collective. Error(kInvalid) on every rank when another job writes to the folder, kAborted when
  // a newer generation of this one does, kSystem when it cannot be made.
  Checkpointer(std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options);

  // What else the run has. Call it once, before begin() or restore(), with the same kinds of parts
  // on every rank.
  void attach(const RunParts& parts) { parts_ = parts; }

  // Collective. How a job begins, before its first step. A first start restores nothing, and
  // Error(kInvalid) on every rank when a state is there already: of whichever run, it would be lost
  // or taken for this one's. With `resume` it restores that; Error(kInvalid) when the newest
  // checkpoint is of another run than its directory, unless `resume_other_run` says so. A restart
  // by the launcher restores what its own job has left, nothing when that is nothing, and
  // Error(kInvalid) when what is there is another's (find_ownership()). Errors of restore();
  // kSystem when the directory cannot be marked as this run's. A program that calls restore()
  // instead decides all that itself. `seed`: of a run that begins here; noted, and shown where two
  // are confused.
  std::optional<RestoredRun> begin(torch::nn::Module& module, optim::Optimizer& optimizer,
                                   std::uint64_t seed);

  // Collective. Returns once the state has been copied; it is written in the background
  // (checkpoint_writer.h). A checkpoint that cannot be written (disk full) is logged and costs
  // nothing else: the older ones stay. DamagedState on every rank, and nothing is written, when the
  // ranks' parameters differ or the optimizer's state of one changed in memory by itself
  // (Optimizer::verify_state()). False, on every rank, when one before this one could not;
  // Error(kAborted) on every rank when a newer generation of the job writes there now.
  bool save(const TrainingState& state, const torch::nn::Module& module,
            const optim::Optimizer& optimizer);

  // Bytes that the last restore() of this rank read from the disk, manifests not counted.
  std::uint64_t bytes_read() const { return bytes_read_; }

  // Collective. Waits until all that was saved is on the disk; false, on every rank, when something
  // since the last answer of save() or finish() is not. Error(kAborted) as save().
  bool finish();

  // For how many checkpoints the disk has room, where that are fewer than one more than are kept:
  // the oldest is then removed before each save. Rank 0 knows; ask after finish().
  std::optional<int> room_on_disk() const;

  // Collective. Keeps the state in memory that outlives the ranks' processes. Memory that does not
  // suffice is logged and costs nothing else; false then, on every rank. Error(kCorrupt) as save().
  bool save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                      const optim::Optimizer& optimizer);

  // Collective. Restores the newest state, in place: from the memory of hosts, or from the disk
  // where that has a newer one that verifies; nothing when there is none at all. The learning rates
  // become the saved ones: set others afterwards. Error on every rank, which leaves module and
  // optimizer as they are: kCorrupt when none verifies, kInvalid listing what differs when it is of
  // another model or optimizer, or has other parts than were attached.
  std::optional<RestoredRun> restore(torch::nn::Module& module, optim::Optimizer& optimizer);

 private:
  // What a rank has of a saved run before it takes any of it over.
  struct Staged;

  void require_sound(const TrainingState& state, const torch::nn::Module& module,
                     const optim::Optimizer& optimizer) const;
  RunShare own_share() const;
  void add_states_of_ranks(RunBoxes& run) const;
  bool is_divided() const { return replicas_->world_size() < group_->world_size(); }
  FoundStates find_states();
  void disown(const JobStart& start, const FoundStates& found);
  FoundState find_on_disk() const;
  void take_run(const JobStart& start, const Ownership& own, const FoundStates& found,
                std::uint64_t seed);
  void require_run(const Manifest& saved, const RunBoxes& boxes,
                   const optim::Optimizer& optimizer) const;
  Staged stage(const Manifest& saved, const RunBoxes& boxes) const;
  void take_over(const Manifest& saved, const Staged& staged, const RunBoxes& boxes,
                 torch::nn::Module& module, optim::Optimizer& optimizer);

  const std::shared_ptr<ProcessGroup> group_;     // owners: the user and this
  const std::shared_ptr<ProcessGroup> replicas_;  // owners: the user and this
  const CheckpointOptions options_;
  RunParts parts_;
  CheckpointTeam team_;
  std::optional<MemoryTeam> memory_;  // on all ranks or on none
  RunMark mark_;                      // once begun
  std::uint64_t bytes_read_ = 0;
};

// When a training run saves its state, and how it is asked to stop: checkpoints after every so many
// steps or each epoch, copies in memory, an agreed stop (group/agreed_stop.h). Without a folder it
// does nothing.
//
// Ownership: it refers to the module, the optimizer and the times, which outlive it. Thread safety:
// none.
class RunCheckpoints {
 public:
  // Collective. `replicas`, where given, is CheckpointOptions::replicas. Errors: those of
  // Checkpointer and memory_path().
  RunCheckpoints(std::shared_ptr<ProcessGroup> group, CheckpointOptions options,
                 torch::nn::Module& module, optim::Optimizer& optimizer, PhaseTimes& times,
                 const std::shared_ptr<ProcessGroup>& replicas = nullptr);

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
  CheckpointOptions options_;
  torch::nn::Module& module_;
  optim::Optimizer& optimizer_;
  PhaseTimes& times_;
  std::optional<Checkpointer> checkpointer_;
  std::optional<AgreedStop> stop_;  // where there is a place to save to
  std::int64_t saved_step_ = -1;    // on the disk
};

}  // namespace paceline::train
