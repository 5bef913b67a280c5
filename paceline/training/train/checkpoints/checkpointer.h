#pragma once

// Checkpoints of a whole training run: parameters, optimizers, the position in the data, random
// numbers and anything else that a program attaches.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/train/checkpoints/attached_state.h"

namespace paceline::optim {
class ExponentialMovingAverage;
}

namespace paceline::train {

// A run's options for checkpoints. A Checkpointer in a loop of your own ignores the fields that are
// marked "TrainingRun".
struct CheckpointOptions {
  std::string folder = {};  // empty: TrainingRun makes no checkpoints
  // The number of checkpoints to keep on the disk. If all of these have infinities or NaNs among
  // their parameters, the newest checkpoint without such values is kept as well.
  int keep = 3;
  std::int64_t every = 0;         // TrainingRun: in steps; 0: at each epoch's end
  std::int64_t memory_every = 0;  // TrainingRun: steps between copies in memory; 0: no copies
  // The path for MemoryTeam, the same for all ranks of a host; empty: no copies in memory. If
  // TrainingRun needs a path and none is given, it uses the launcher's
  // (PACELINE_MEMORY_CHECKPOINT).
  std::string memory = {};
  // Compares the parameters of all replicas before each save. Set it to false for replicas that
  // differ on purpose; the parameters of the first replica are then saved.
  bool compare_replicas = true;
  // The ranks that hold the same parts of the model as this one, if the model is divided among
  // ranks (DeviceMesh::group("dp")); null: all ranks.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
  bool resume = false;            // begin() continues the state that it finds
  bool resume_other_run = false;  // resumes even if the newest checkpoint belongs to another run
                                  // than the folder; the folder then belongs to that run
  std::string stop_file = {};     // TrainingRun: the file of AgreedStop
};

namespace detail {

// The parts that Checkpointer::attach() accepts.
template <class Part>
concept Attachable =
    Stateful<Part> || OwnValue<Part> ||
    std::is_convertible_v<Part&, std::shared_ptr<torch::nn::Module>> ||
    std::is_base_of_v<optim::Optimizer, Part> || std::is_base_of_v<torch::optim::Optimizer, Part> ||
    std::is_base_of_v<data::DataLoader, Part> || std::is_same_v<torch::optim::StepLR, Part> ||
    std::is_same_v<optim::ExponentialMovingAverage, Part> ||
    requires { typename Part::ContainedType; } || requires(Part& model) { model.module_ptr(); };

}  // namespace detail

class CheckpointerCore;
struct RestoredRun;
struct RunParts;
struct TrainingState;

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
// A checkpoint consists of boxes of whole tensors (docs/checkpoints.md), so a run can continue with
// any number of ranks and hosts and any division of model and optimizer. All ranks write at the
// same time, in the background; to restore, they read the boxes that they need. With copies in
// memory, a host holds the files of its own ranks and of another host, so that the loss of a single
// host loses no state. No rank needs additional memory for parts of the run that it does not hold.
//
// A training program attaches the parts of its run under names, and calls begin(), which ensures
// that the job continues only its own state:
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
// Ownership: the parts that are attached must outlive this object. Thread safety: none.
class Checkpointer {
 public:
  // Collective. Error(kInvalid) on every rank when another job writes to the folder, kAborted when
  // a newer generation of this job does, kSystem when the folder cannot be created.
  Checkpointer(std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options);
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Adds a part of the run under a name. Call it before begin(), with the same names and kinds of
  // parts on every rank (each rank may have modules of its own). Error(kInvalid) for a name that is
  // empty, contains a dot or is taken, for a module, StepLR, loader or optimizer of torch::optim
  // that is attached already, and after begin().
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
  // At most one optimizer of paceline::optim, whose state may be divided among ranks, and at most
  // one average; Error(kUnsupported) for a second one.
  void attach(const std::string& name, optim::Optimizer& optimizer);
  void attach(const std::string& name, optim::ExponentialMovingAverage& average);
  // For these parts rank 0's state is saved, and all ranks get it: any number of optimizers of
  // torch::optim, LibTorch's StepLR, a loader with its position, a schedule, a loss scaler, any
  // class with std::map<std::string, std::string> state() const and set_state() of such a map
  // (Stateful), numbers, strings and tensors (OwnValue).
  // Error(kUnsupported) for an optimizer of torch::optim if the ranks divide the model.
  void attach(const std::string& name, torch::optim::Optimizer& optimizer);
  void attach(const std::string& name, torch::optim::StepLR& schedule);
  void attach(const std::string& name, data::DataLoader& loader);
  template <class Part>
    requires Stateful<Part> || OwnValue<Part>
  void attach(const std::string& name, Part& part) {
    add_state(state_of(name, part));
  }

  // Collective. Begins a job with the attached parts, before its first step, and returns the number
  // of steps taken: 0, or that of the state that was restored. A first start without `resume`
  // restores nothing; Error(kInvalid) on every rank when a state already exists, which could be
  // lost or mistaken for a state of this run. With `resume` it restores that state; Error(kInvalid)
  // when the newest checkpoint belongs to a run that is not its directory's, unless
  // `resume_other_run` is set. A restart by the launcher restores the state that its own job saved,
  // if any; Error(kInvalid) when the state belongs to another job. Errors: those of restore();
  // kSystem when the directory cannot be marked as belonging to this run. A program that calls
  // restore() instead must make all these decisions itself. `seed`: the seed of a run that begins
  // here; it is saved for messages that distinguish two runs.
  // Error(kInvalid) if no module is attached; kCorrupt when no state passes verification.
  std::int64_t begin(std::uint64_t seed = 0);
  // Collective. Returns once the state has been copied; it is written in the background. If a
  // checkpoint cannot be written (disk full), this is logged and the older ones are kept. Returns
  // false on every rank when an earlier checkpoint could not be written. DamagedState on every
  // rank, without writing anything, when the parameters of replicas differ or when the memory of a
  // rank's optimizer, average, scaler, buffers or hook was damaged (Optimizer::verify_state()).
  // Error(kAborted) on every rank when a newer generation of the job now writes to the folder.
  bool save(std::int64_t step);
  // Collective. Copies the state to memory that outlives the processes of the ranks. Returns false
  // on every rank, and logs the reason, when there is not enough memory. DamagedState as for
  // save().
  bool save_to_memory(std::int64_t step);
  // Collective. Waits until the last save is on the disk. Returns false on every rank when a save
  // has failed since save() or finish() last returned. Error(kAborted) as for save().
  bool finish();

  // The number of checkpoints for which the disk has room, if a save found the disk full; after
  // such a save the oldest checkpoint is removed before each save. Set only on rank 0, and only
  // after finish().
  std::optional<int> checkpoints_that_fit() const;

 public:  // internal
  // A common mistake: a part that the other overloads do not take.
  template <class Part>
    requires(!detail::Attachable<Part>)
  void attach(const std::string& /*name*/, Part& /*part*/) {
    if constexpr (std::is_base_of_v<torch::nn::Module, Part>) {
      static_assert(sizeof(Part) == 0,
                    "attach() shares the module with the program: give it std::make_shared<Net>() "
                    "or a holder (TORCH_MODULE), not the module itself");
    } else {
      static_assert(sizeof(Part) == 0,
                    "attach() cannot read the state of this class: give it the functions "
                    "std::map<std::string, std::string> state() const and set_state(const "
                    "std::map<std::string, std::string>&); for LibTorch's "
                    "ReduceLROnPlateauScheduler use paceline::optim::ReduceLROnPlateau");
    }
  }
  template <class Part>
  void attach(const std::string& /*name*/, Part* /*part*/) {
    static_assert(sizeof(Part) == 0,
                  "attach() takes the part itself, not its address: write attach(name, part)");
  }
  template <class Part>
    requires(!std::is_same_v<Part, RunParts> && !std::is_same_v<Part, const RunParts>)
  void attach(Part& /*part*/) {
    static_assert(sizeof(Part) == 0,
                  "a part has a name in the checkpoint: write attach(\"model\", model)");
  }
  // For TrainingRun, which passes module and optimizer in each call instead of attaching them.
  //
  // Sets the other parts of the run. Call it once, before begin() or restore(), with the same kinds
  // of parts on every rank.
  void attach(const RunParts& parts);

  std::optional<RestoredRun> begin(torch::nn::Module& module, optim::Optimizer& optimizer,
                                   std::uint64_t seed);
  bool save(const TrainingState& state, const torch::nn::Module& module,
            const optim::Optimizer& optimizer);
  bool save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                      const optim::Optimizer& optimizer);
  // Collective. Restores the newest state in place, from the memory of hosts or, if newer, from the
  // newest checkpoint on the disk that passes verification. Returns nullopt if no state exists. The
  // learning rates are restored too; to change them, set them afterwards. Errors are thrown on
  // every rank and leave module and optimizer unchanged: kCorrupt when no state passes
  // verification; kInvalid, with the differences, when the state is from another model or
  // optimizer, or has other parts than those attached.
  std::optional<RestoredRun> restore(torch::nn::Module& module, optim::Optimizer& optimizer);
  // The bytes that the last restore() on this rank read from the disk, without manifests.
  std::uint64_t bytes_read() const;

 private:
  void attach_reducer(Reducer& reducer);
  void add_state(AttachedState state);

  const std::unique_ptr<CheckpointerCore> core_;
};

}  // namespace paceline::train
