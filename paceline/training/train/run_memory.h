#pragma once

// The memory of a training run: what it will take, planned when its first step has been taken, and
// at its end what it took.
//
// The plan of a rank adds up
//
//   parameters   those of the optimizer; of one copy a host, the rank's share of it
//   gradients    as the optimizer's first step found them
//   optimizer    its state
//   activations  all other tensors that were alive at the peak of the first step, counted as they
//                were made (TensorMemoryMeter)
//   working      the copy that a checkpoint is written from
//   process      all else: what the process had before the step beside parameters and state, or
//                what it has after it beside all of the above, whichever is more; of libraries, the
//                rank's share among those of its host
//
// What a rank takes is counted in proportional sets, in which a page of N processes counts as an
// Nth, so that the ranks of a host add up. The peak is what it has at the end, with what it gave
// back since its resident set was largest. Not counted: what was larger before the first step.
//
// Thread safety: none.

#include <optional>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/forecast/memory_plan.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/tensor/tensor_memory.h"

namespace paceline::train {

// The memory of this process in bytes, as the kernel counts it (proc_pid_smaps(5),
// proc_pid_status(5)). A page that N processes have counts as an Nth in a proportional set.
struct OwnMemory {
  double anonymous = 0;      // proportional
  double shared = 0;         // proportional: of files in memory, such as symmetric memory
  double files = 0;          // of files on a disk, such as libraries, each page whole
  double resident = 0;       // all pages, each whole
  double peak_resident = 0;  // the most since the process began

  double own() const { return anonymous + shared; }
};

// Nothing where the kernel does not tell all of it.
std::optional<OwnMemory> own_memory();

// Bytes.
struct MemoryReport {
  planning::RankMemory rank;  // the plan of the rank for which most was planned
  double rank_peak = 0;       // what that rank took
  double host_planned = 0;    // of the host for which most was planned
  double host_peak = 0;

  // The closing table's rows.
  std::string table() const;
};

class RunMemory {
 public:
  // In this order: before the first step, in it between gradients and optimizer, after it with the
  // gradients gone; what comes later does nothing. There is no plan where something else counts
  // tensors already, as another rank of this process does, or the kernel tells too little.
  void begin(const optim::Optimizer& optimizer);
  void count_gradients(const optim::Optimizer& optimizer);
  // `checkpoint_bytes`: of the copy that this rank writes a checkpoint from; 0: none are made.
  void plan(const optim::Optimizer& optimizer, double checkpoint_bytes);

  // Collective, at the end. The same on every rank; nothing where some rank has no plan.
  std::optional<MemoryReport> report(ProcessGroup& group) const;

 private:
  std::optional<TensorMemoryMeter> meter_;  // of the first step
  std::optional<double> gradient_bytes_;
  double process_before_ = 0;
  double resident_peak_before_ = 0;
  std::optional<planning::RankMemory> plan_;
  double library_bytes_ = 0;  // beside that, for all ranks of the host
};

}  // namespace paceline::train
