#pragma once

// Checkpoints of a whole training run: find_ownership() decides whose state a starting job may
// continue, Checkpointer saves and restores, and RunCheckpoints decides when a run saves and stops.

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

// The origin of the newest checkpoint of a directory, as far as it can be read.
struct FoundOrigin {
  std::int64_t step = 0;
  std::string run;  // empty: unknown
  std::optional<std::uint64_t> seed;
};

// The state that was found in one place.
struct FoundState {
  std::optional<std::int64_t> step;        // the newest; nothing: no state
  std::optional<RunMark> mark;             // whose state it is, if known
  std::optional<FoundOrigin> newest = {};  // of a directory
};

struct FoundStates {
  std::string directory;  // its name
  FoundState on_disk;
  std::vector<FoundState> in_memory;  // [rank]; one rank of each host may have some
};

struct JobStart {
  std::string job;         // the launcher's name for the job
  bool restarted = false;  // by the launcher, after a failure
  bool resume = false;     // the user asked to continue
  bool other_run = false;  // also if the newest checkpoint is another run's
};

struct Ownership {
  std::string run;  // the run that the job continues; empty: it begins a run, or takes over a
                    // directory without a known run
  std::optional<std::uint64_t> seed;  // the seed of that run, if known
  std::vector<int> stale_memory;  // ranks of hosts that joined later, whose memory has another run,
                                  // to be forgotten
};

// Decides whether the state that a starting job finds is its own to continue. The newest step alone
// does not tell: a directory, or a memory that the user named, may hold an older job's state.
//
//   a first start               needs places without any state: state there belongs to another job
//   a first start that resumes  continues the run of the directory or, without one, that of the
//                               newest memory; refuses a newest checkpoint of another run, unless
//                               it was told to take that one
//   a restart by the launcher   continues the run that its own job began, or begins it
//
// Error(kInvalid), with advice, when the state is not this job's. Pure: all ranks get the same
// answer from the same facts.
Ownership find_ownership(const JobStart& start, const FoundStates& found);

// The checkpoint options of a run. Checkpointer alone ignores the fields of RunCheckpoints.
struct CheckpointOptions {
  std::string folder;             // empty: RunCheckpoints makes none
  int keep = 3;                   // checkpoints on the disk
  std::int64_t every = 0;         // RunCheckpoints: steps; 0: at each epoch's end
  std::int64_t memory_every = 0;  // RunCheckpoints: steps between copies in memory; 0: none
  // MemoryTeam's path, the same for the ranks of a host; empty: none. RunCheckpoints uses
  // memory_path() if it needs a path and none is given.
  std::string memory;
  // Compares all replicas' parameters before each save. Set it to false for replicas that differ on
  // purpose; the first replica's parameters are saved then.
  bool compare_replicas = true;
  // The ranks that hold the same parts of a model that is divided among the others
  // (DeviceMesh::group("dp")); null: all.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
  bool resume = false;            // begin() continues the state that it finds
  bool resume_other_run = false;  // also if the newest checkpoint is of another run than the
                                  // directory's; the directory then belongs to that run
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
// bits as an uninterrupted one, if the number of ranks is the same. With another number, a hook's
// residuals become their mean on every rank (training/parallel/communication_hook.h), and ranks
// that the saved run did not have keep the random state of their seed. If buffers differ between
// replicas (BatchNorm's statistics), those of the first replica are saved, because all ranks
// evaluate and continue with them (DistributedDataParallel).
//
// A checkpoint consists of boxes of whole tensors (run_boxes.h), so the run can continue with any
// number of ranks and hosts and any division of model and optimizer. Each rank writes, in the
// background, and reads the boxes that it holds; all ranks do so at the same time
// (checkpoint_team.h). The memory of a host keeps what its own ranks and those of one other host
// write, so nothing is lost with a host (memory_checkpoint.h). No rank needs memory for more of the
// run than it holds.
//
// Training starts with begin(), which makes sure that the state that it continues is its own.
//
// Thread safety: none.
class Checkpointer {
 public:
  // Collective. Error(kInvalid) on every rank when another job writes to the folder, kAborted when
  // a newer generation of this job does, kSystem when the folder cannot be made.
  Checkpointer(std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options);

  // Attaches the other parts of the run. Call it once, before begin() or restore(), with the same
  // kinds of parts on every rank.
  void attach(const RunParts& parts) { parts_ = parts; }

  // Collective. Begins a job, before its first step. A first start restores nothing, and throws
  // Error(kInvalid) on every rank if there is a state already, which would be lost or taken for
  // this run's. With `resume` it restores that state; Error(kInvalid) if the newest checkpoint is
  // of another run than its directory, unless `resume_other_run` is set. A restart by the launcher
  // restores the state that its own job has left, if any; Error(kInvalid) if the state is another
  // job's (find_ownership()). Errors of restore(); kSystem when the directory cannot be marked as
  // this run's. A program that calls restore() instead makes these decisions itself. `seed`: that
  // of a run that begins here; it is saved, and shown when two runs are confused.
  std::optional<RestoredRun> begin(torch::nn::Module& module, optim::Optimizer& optimizer,
                                   std::uint64_t seed);

  // Collective. Returns once the state has been copied; it is written in the background
  // (checkpoint_writer.h). A checkpoint that cannot be written (disk full) is logged and has no
  // other effect: the older ones stay. DamagedState on every rank, and nothing is written, when the
  // ranks' parameters differ or the memory of a rank's optimizer state is damaged
  // (Optimizer::verify_state()). False, on every rank, when an earlier checkpoint could not be
  // written; Error(kAborted) on every rank when a newer generation of the job writes there now.
  bool save(const TrainingState& state, const torch::nn::Module& module,
            const optim::Optimizer& optimizer);

  // The bytes that the last restore() of this rank read from the disk, without manifests.
  std::uint64_t bytes_read() const { return bytes_read_; }

  // Collective. Waits until everything that was saved is on the disk; false, on every rank, when
  // something since the last answer of save() or finish() is not. Error(kAborted) as in save().
  bool finish();

  // The number of checkpoints that the disk has room for, if it is too small for one more than are
  // kept: the oldest is then removed before each save. Rank 0 knows it; ask after finish().
  std::optional<int> room_on_disk() const;

  // Collective. Keeps the state in memory that outlives the ranks' processes. If the memory does
  // not suffice, this is logged and has no other effect; false then, on every rank. Error(kCorrupt)
  // as in save().
  bool save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                      const optim::Optimizer& optimizer);

  // Collective. Restores the newest state, in place: from the memory of hosts, or from the disk if
  // that has a newer state that verifies; nothing if there is none at all. The learning rates
  // become the saved ones: set others afterwards. Throws on every rank, and leaves module and
  // optimizer as they are: Error(kCorrupt) when no state verifies, Error(kInvalid) that lists the
  // differences when it is of another model or optimizer, or has other parts than were attached.
  std::optional<RestoredRun> restore(torch::nn::Module& module, optim::Optimizer& optimizer);

 private:
  // The part of a saved run that a rank has read and not taken over yet.
  struct Staged;

  void require_sound(const TrainingState& state, const torch::nn::Module& module,
                     const optim::Optimizer& optimizer) const;
  RunBoxes held_run(const torch::nn::Module& module, const optim::Optimizer& optimizer) const;
  bool is_divided() const { return replicas_->world_size() < group_->world_size(); }
  FoundStates find_states();
  void disown(const JobStart& start, const FoundStates& found);
  FoundState find_on_disk() const;
  void take_run(const JobStart& start, const Ownership& own, const FoundStates& found,
                std::uint64_t seed);
  void require_run(const SavedRun& saved, const RunBoxes& boxes,
                   const optim::Optimizer& optimizer) const;
  Staged stage(const SavedRun& saved, const RunBoxes& boxes) const;
  void take_over(const SavedRun& saved, const Staged& staged, const RunBoxes& boxes,
                 torch::nn::Module& module, optim::Optimizer& optimizer);

  const std::shared_ptr<ProcessGroup> group_;     // owners: the user and this
  const std::shared_ptr<ProcessGroup> replicas_;  // owners: the user and this
  const CheckpointOptions options_;
  RunParts parts_;
  CheckpointTeam team_;
  std::optional<MemoryTeam> memory_;  // on all ranks or on none
  RunMark mark_;                      // set by begin()
  std::uint64_t bytes_read_ = 0;
};

// Decides when a training run saves its state, and how it is asked to stop: checkpoints after a
// number of steps or after each epoch, copies in memory, an agreed stop (group/agreed_stop.h).
// Without a folder it does nothing.
//
// Ownership: it refers to the module, the optimizer and the times, which outlive it. Thread safety:
// none.
class RunCheckpoints {
 public:
  // Collective. `replicas`, if given, is used as CheckpointOptions::replicas. Errors: those of
  // Checkpointer and memory_path().
  RunCheckpoints(std::shared_ptr<ProcessGroup> group, CheckpointOptions options,
                 torch::nn::Module& module, optim::Optimizer& optimizer, PhaseTimes& times,
                 const std::shared_ptr<ProcessGroup>& replicas = nullptr);

  bool are_made() const { return checkpointer_.has_value(); }
  // As Checkpointer::attach() and begin(): collective, before the first step, if are_made().
  std::optional<RestoredRun> begin(const RunParts& parts, std::uint64_t seed);

  // Save what is due; both functions are collective.
  void after_step(const TrainingState& state);
  void after_epoch(const TrainingState& state);
  // Collective. Saves this state too, unless it is saved already, and waits until everything is on
  // the disk; false, on every rank, when something is not.
  bool finish(const TrainingState& state);

  // Collective: whether the ranks are to stop after this step. stop_reason() has the cause.
  bool stop_requested() { return stop_ && stop_->requested(*group_); }
  std::string stop_reason() const { return stop_ ? stop_->reason() : std::string(); }
  // As Checkpointer::room_on_disk().
  std::optional<int> room_on_disk() const;

 private:
  void save(const TrainingState& state);

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  CheckpointOptions options_;
  torch::nn::Module& module_;
  optim::Optimizer& optimizer_;
  PhaseTimes& times_;
  std::optional<Checkpointer> checkpointer_;
  std::optional<AgreedStop> stop_;  // if there is a place to save to
  std::int64_t saved_step_ = -1;    // the last step that was saved to the disk
};

}  // namespace paceline::train
