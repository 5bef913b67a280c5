#pragma once

// The options of a run's checkpoints.
//
// Thread safety: a value.

#include <cstdint>
#include <memory>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::train {

// A run's options for checkpoints. Checkpointer ignores the fields marked "RunCheckpoints".
struct CheckpointOptions {
  std::string folder = {};        // empty: RunCheckpoints makes no checkpoints
  int keep = 3;                   // the number of checkpoints to keep on the disk
  std::int64_t every = 0;         // RunCheckpoints: in steps; 0: at each epoch's end
  std::int64_t memory_every = 0;  // RunCheckpoints: steps between copies in memory; 0: no copies
  // The path for MemoryTeam, the same for all ranks of a host; empty: no copies in memory. If
  // RunCheckpoints needs a path and none is given, it uses memory_path().
  std::string memory = {};
  // Compares the parameters of all replicas before each save. Set it to false for replicas that
  // differ on purpose; the parameters of the first replica are then saved.
  bool compare_replicas = true;
  // The ranks that hold the same parts of the model as this one, if the model is divided among
  // ranks (DeviceMesh::group("dp")); null: all ranks.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
  bool resume = false;            // begin() continues the state that it finds
  bool resume_other_run = false;  // even if the newest checkpoint belongs to a run that is not the
                                  // directory's; that run then becomes the directory's
  std::string stop_file = {};     // RunCheckpoints: the file of AgreedStop
};

}  // namespace paceline::train
