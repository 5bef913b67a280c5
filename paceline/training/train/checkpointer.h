#pragma once

// Saves and restores a whole training run: parameters, buffers, optimizer with its learning rates,
// schedule, loss scaler, average of the weights and communication hook (attach()), position in the
// data, and every rank's random state. A run that was interrupted and resumed ends with the same
// bits as one that was not, given the same number of ranks. With another number a hook's residuals
// become their mean on every rank (training/parallel/hook_state.h), and ranks that the saved run
// did not have keep the random state of their seed. Buffers that differ (BatchNorm's statistics)
// are those of the first replica: what all ranks evaluate and go on with (DistributedDataParallel).
//
// A checkpoint consists of boxes of whole tensors (run_boxes.h), so that the run goes on with any
// number of ranks and hosts and any division of model and optimizer, whichever saved it. Each rank
// writes, in the background, and reads what it holds, all at the same time (checkpoint_team.h). In
// memory a host keeps what its own ranks write and what those of another one do, so that the loss
// of one loses nothing (memory_team.h). No rank needs memory for more of the run than it holds.
//
// A training begins with begin(), which sees to it that the state it goes on with is its own.
//
// Thread safety: none.

#include <map>
#include <memory>
#include <optional>
#include <string>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/files/checkpoint/checkpoint_team.h"
#include "paceline/files/checkpoint/memory_team.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/run_boxes.h"
#include "paceline/training/train/run_ownership.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/run_snapshot.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

struct CheckpointerOptions {
  int keep = 3;  // checkpoints on the disk
  // MemoryTeam's path, the same for the ranks of a host; empty: none. memory_path() is the
  // launcher's.
  std::string memory;
  // Compares all replicas' parameters before each save. For those that differ on purpose: false;
  // the first one's are saved then.
  bool compare_replicas = true;
  // The ranks that hold the same parts of a model that is divided among the others
  // (DeviceMesh::group("dp")); null: all.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
};

// Where the launcher keeps a job's state in memory (PACELINE_MEMORY_CHECKPOINT). Error(kInvalid)
// under a launcher that keeps none.
std::string memory_path();

// What the user asked for.
struct BeginOptions {
  bool resume = false;     // continue what is there
  bool other_run = false;  // also a newest checkpoint of another run than the directory's, whose
                           // run the directory's then becomes
  std::uint64_t seed = 0;  // of a run that begins here; noted, and shown where two are confused
};

struct RestoredRun {
  TrainingState state;
  bool from_memory = false;
};

class Checkpointer {
 public:
  // Collective. Error(kInvalid) on every rank when another job writes to `path`, kAborted when a
  // newer generation of this one does, kSystem when it cannot be made.
  Checkpointer(std::shared_ptr<ProcessGroup> group, const std::string& path,
               const CheckpointerOptions& options = {});

  // What else the run has. Call it once, before begin() or restore(), with the same kinds of parts
  // on every rank.
  void attach(const RunParts& parts) { parts_ = parts; }

  // Collective. How a job begins, before its first step. A first start restores nothing, and
  // Error(kInvalid) on every rank when a state is there already: of whichever run, it would be lost
  // or taken for this one's. With `resume` it restores that; Error(kInvalid) when the newest
  // checkpoint is of another run than its directory, unless `other_run` says so. A restart by the
  // launcher restores what its own job has left, nothing when that is nothing, and Error(kInvalid)
  // when what is there is another's (run_ownership.h). Errors of restore(); kSystem when the
  // directory cannot be marked as this run's. A program that calls restore() instead decides all
  // that itself.
  std::optional<RestoredRun> begin(torch::nn::Module& module, optim::Optimizer& optimizer,
                                   const BeginOptions& options);

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
  RunBoxes held_run(const torch::nn::Module& module, const optim::Optimizer& optimizer) const;
  bool is_divided() const { return replicas_->world_size() < group_->world_size(); }
  FoundStates find_states();
  void disown(const JobStart& start, const FoundStates& found);
  FoundState find_on_disk() const;
  void take_run(const JobStart& start, const Ownership& own, const FoundStates& found,
                std::uint64_t seed);
  std::optional<std::int64_t> newest_on_disk() const;
  static void refuse(std::int64_t step, const std::string& reason, std::string& refused);
  std::optional<Manifest> next_on_disk(std::int64_t before, std::string& refused) const;
  void require_run(const SavedRun& saved, const RunBoxes& boxes,
                   const optim::Optimizer& optimizer) const;
  Staged stage(const SavedRun& saved, const RunBoxes& boxes) const;
  bool fill_from_disk(const Manifest& manifest, Staged& staged, std::string& refused);
  void take_over(const SavedRun& saved, const Staged& staged, const RunBoxes& boxes,
                 torch::nn::Module& module, optim::Optimizer& optimizer);

  const std::shared_ptr<ProcessGroup> group_;     // owners: the user and this
  const std::shared_ptr<ProcessGroup> replicas_;  // owners: the user and this
  const std::string path_;
  RunParts parts_;
  CheckpointTeam team_;
  const bool compares_replicas_;
  std::optional<MemoryTeam> memory_;  // on all ranks or on none
  RunMark mark_;                      // once begun
  std::uint64_t bytes_read_ = 0;
};

}  // namespace paceline::train
