#pragma once

// Checkpoints of a whole training run: find_ownership() decides whose state a starting job may
// continue, Checkpointer saves and restores, and RunCheckpoints chooses when a run saves and stops.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/checkpoint_team.h"
#include "paceline/files/checkpoint/memory_checkpoint.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/train/checkpoints/attached_state.h"
#include "paceline/training/train/checkpoints/run_boxes.h"
#include "paceline/training/train/checkpoints/run_snapshot.h"
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
  std::vector<FoundState> in_memory;  // [rank]; set only for the first rank of a memory
};

struct JobStart {
  std::string job;         // the launcher's name for the job
  bool restarted = false;  // the launcher restarted the job after a failure
  bool resume = false;     // the user asked to continue a run
  bool other_run = false;  // continue the newest checkpoint even if it belongs to another run
};

struct Ownership {
  std::string run;  // the run to continue; empty: a new run, or that of an unmarked directory
  std::optional<std::uint64_t> seed;  // the seed of that run, if it is known
  std::vector<int> stale_memory;      // ranks whose memory holds another run, because their hosts
                                      // joined later; they must discard it
};

// Decides whether a starting job may continue the state that it finds. The newest step alone does
// not show that, because a directory, or a memory that the user named, may hold the state of an
// older job.
//
//   a first start               requires that there is no state: it would belong to another job
//   a first start that resumes  continues the run of the directory, or, without one, the run of the
//                               newest memory; refuses a newest checkpoint of another run, unless
//                               `other_run` is set
//   a restart by the launcher   continues the run that its own job began, or begins one
//
// Error(kInvalid), with advice, when the state does not belong to this job. Pure: all ranks make
// the same decision from the same facts.
Ownership find_ownership(const JobStart& start, const FoundStates& found);

// A run's options for checkpoints. Checkpointer ignores the fields marked "RunCheckpoints".
struct CheckpointOptions {
  std::string folder;             // empty: RunCheckpoints makes no checkpoints
  int keep = 3;                   // the number of checkpoints to keep on the disk
  std::int64_t every = 0;         // RunCheckpoints: in steps; 0: at each epoch's end
  std::int64_t memory_every = 0;  // RunCheckpoints: steps between copies in memory; 0: no copies
  // The path for MemoryTeam, the same for all ranks of a host; empty: no copies in memory. If
  // RunCheckpoints needs a path and none is given, it uses memory_path().
  std::string memory;
  // Compares the parameters of all replicas before each save. Set it to false for replicas that
  // differ on purpose; the parameters of the first replica are then saved.
  bool compare_replicas = true;
  // The ranks that hold the same parts of the model as this one, if the model is divided among
  // ranks (DeviceMesh::group("dp")); null: all ranks.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
  bool resume = false;            // begin() continues the state that it finds
  bool resume_other_run = false;  // even if the newest checkpoint belongs to a run that is not the
                                  // directory's; that run then becomes the directory's
  std::string stop_file;          // RunCheckpoints: AgreedStopOptions::file
};

// The path of the memory that the launcher provides for a job (PACELINE_MEMORY_CHECKPOINT).
// Error(kInvalid) under a launcher that provides none.
std::string memory_path();

struct RestoredRun {
  TrainingState state;
  bool from_memory = false;
};

// Saves and restores a whole training run: parameters, buffers, the optimizer with its learning
// rates, the parts added with attach() (schedule, loss scaler, average of the weights,
// communication hook), the position in the data, and the random state of every rank. With the same
// number of ranks, a run that was interrupted and resumed ends with the same bits as one that was
// not interrupted. With another number of ranks, every rank gets the mean of a hook's residuals
// (training/parallel/communication_hook.h), and ranks that the saved run did not have keep the
// random state from their seed. If buffers differ between replicas (BatchNorm's statistics), those
// of the first replica are saved; all ranks evaluate and continue with them
// (DistributedDataParallel).
//
// A checkpoint consists of boxes of whole tensors (run_boxes.h), so a run can continue with any
// number of ranks and hosts and any division of model and optimizer. All ranks write at the same
// time, in the background; to restore, they read the boxes that they need (checkpoint_team.h). The
// memory of a host holds the files of its own ranks and those of another host, so that no state is
// lost with a single host (memory_checkpoint.h). No rank needs additional memory for parts of the
// run that it does not hold.
//
// A training program attaches the parts of its run under names, and calls begin(), which ensures
// that the job continues only a state of its own:
//
//   train::Checkpointer checkpointer(group, {.folder = "run", .resume = true});
//   checkpointer.attach("model", model);          // a module, or DistributedDataParallel
//   checkpointer.attach("optimizer", optimizer);  // one of torch::optim, or of paceline::optim
//   checkpointer.attach("data", loader);
//   checkpointer.attach("best", best_loss);       // a value of your own
//   std::int64_t step = checkpointer.begin();
//   for (auto epoch = loader.position().epoch; epoch < epochs; ++epoch) {
//     for (const data::Batch& batch : loader.epoch(epoch)) {
//       ...
//       if (++step % 100 == 0) checkpointer.save(step);
//     }
//   }
//   checkpointer.save(step);
//   checkpointer.finish();
//
// train_image and TrainingRun pass module, optimizer and TrainingState to each call instead.
//
// Ownership: the parts that are attached must outlive this object. Thread safety: none.
class Checkpointer {
 public:
  // Collective. Error(kInvalid) on every rank when another job writes to the folder, kAborted when
  // a newer generation of this job does, kSystem when the folder cannot be created.
  Checkpointer(std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options);

  // Sets the other parts of the run. Call it once, before begin() or restore(), with the same kinds
  // of parts on every rank.
  void attach(const RunParts& parts) { parts_ = parts; }

  // Adds a part of the run under a name. Call it before begin(), with the same names and kinds of
  // parts on every rank. Error(kInvalid) for a name that is empty, contains a dot or is taken.
  //
  // With one module, a checkpoint has the names of its parameters; with several, these names begin
  // with the module's: "generator.conv.weight". At most one wrapper may have a communication hook;
  // its state is saved too. Error(kUnsupported) for a second one.
  void attach(const std::string& name, std::shared_ptr<torch::nn::Module> module);
  template <class Contained>
  void attach(const std::string& name, const torch::nn::ModuleHolder<Contained>& module) {
    attach(name, std::shared_ptr<torch::nn::Module>(module.ptr()));
  }
  template <class Module>
  void attach(const std::string& name, DistributedDataParallel<Module>& model) {
    attach(name, std::shared_ptr<torch::nn::Module>(model.module_ptr()));
    attach_reducer(model.reducer());
  }
  // At most one optimizer of paceline::optim, whose state may be divided among ranks;
  // Error(kUnsupported) for a second one.
  void attach(const std::string& name, optim::Optimizer& optimizer);
  void attach(const std::string& name, optim::ExponentialMovingAverage& average);
  // For these parts rank 0's state is saved, and all ranks get it: any number of optimizers of
  // torch::optim, a loader with its position, a schedule, a loss scaler, any class with the
  // functions state() and set_state() (Stateful), numbers, texts and tensors (OwnValue).
  // Error(kUnsupported) in save() for an optimizer of torch::optim if the ranks divide the model.
  void attach(const std::string& name, torch::optim::Optimizer& optimizer);
  void attach(const std::string& name, data::DataLoader& loader);
  template <class Part>
    requires Stateful<Part> || OwnValue<Part>
  void attach(const std::string& name, Part& part) {
    add_state(state_of(name, part));
  }

  // Collective. Begins a job with the attached parts, as begin() below does, and returns the number
  // of steps taken: 0, or that of the state that was restored. Error(kInvalid) if no module is
  // attached.
  std::int64_t begin(std::uint64_t seed = 0);
  // Collective. Saves the attached parts after `step` steps, as save() and save_to_memory() below
  // do.
  bool save(std::int64_t step);
  bool save_to_memory(std::int64_t step);

  // Collective. Begins a job, before its first step (find_ownership()). A first start without
  // `resume` restores nothing; Error(kInvalid) on every rank when a state already exists, which
  // could be lost or mistaken for a state of this run. With `resume` it restores that state;
  // Error(kInvalid) when the newest checkpoint belongs to a run that is not its directory's, unless
  // `resume_other_run` is set. A restart by the launcher restores the state that its own job saved,
  // if any; Error(kInvalid) when the state belongs to another job. Errors of restore(); kSystem
  // when the directory cannot be marked as belonging to this run. A program that calls restore()
  // instead must make all these decisions itself. `seed`: the seed of a run that begins here; it is
  // saved for messages that distinguish two runs.
  std::optional<RestoredRun> begin(torch::nn::Module& module, optim::Optimizer& optimizer,
                                   std::uint64_t seed);

  // Collective. Returns once the state has been copied; it is written in the background
  // (checkpoint_writer.h). If a checkpoint cannot be written (disk full), this is logged and the
  // older ones are kept. Returns false on every rank when an earlier checkpoint could not be
  // written. DamagedState on every rank, without writing anything, when the parameters of replicas
  // differ or when any code except the optimizer changed the state of a rank's optimizer
  // (Optimizer::verify_state()). Error(kAborted) on every rank when a newer generation of the job
  // now writes to the folder.
  bool save(const TrainingState& state, const torch::nn::Module& module,
            const optim::Optimizer& optimizer);

  // The bytes that the last restore() on this rank read from the disk, without manifests.
  std::uint64_t bytes_read() const { return bytes_read_; }

  // Collective. Waits until the last save is on the disk. Returns false on every rank when a save
  // has failed since save() or finish() last returned. Error(kAborted) as for save().
  bool finish();

  // The number of checkpoints for which the disk has room, if a save found the disk full; after
  // such a save the oldest checkpoint is removed before each save. Set only on rank 0, and only
  // after finish().
  std::optional<int> checkpoints_that_fit() const;

  // Collective. Copies the state to memory that outlives the processes of the ranks. Returns false
  // on every rank, and logs the reason, when there is not enough memory. DamagedState as for
  // save().
  bool save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                      const optim::Optimizer& optimizer);

  // Collective. Restores the newest state in place: from the memory of hosts, or from the disk if
  // that has a newer state that passes verification. Returns nullopt when there is no state. The
  // learning rates are restored too; to change them, set them afterwards. Errors are thrown on
  // every rank and leave module and optimizer unchanged: kCorrupt when no state passes
  // verification; kInvalid, with the differences, when the state is from another model or
  // optimizer, or has other parts than those attached.
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
  void attach_reducer(Reducer& reducer);
  void take_name(const std::string& name);
  void add_state(AttachedState state);
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
  std::set<std::string> names_;  // of the attached parts
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules_;
  std::shared_ptr<torch::nn::Module> whole_;  // has all modules_; set by begin()
  optim::Optimizer* optimizer_ = nullptr;     // attached
  bool has_torch_optimizer_ = false;          // attached
  std::uint64_t seed_ = 0;                    // of a run with attached parts
  CheckpointTeam team_;
  std::optional<MemoryTeam> memory_;  // set on all ranks or on none
  RunMark mark_;                      // set by begin()
  std::uint64_t bytes_read_ = 0;
};

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
