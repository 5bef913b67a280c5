#pragma once

// The ranks of a group that save and load checkpoints together, each rank the part that it holds.
// Every checkpoint of a run is written in this way; a process without other ranks forms a group of
// one. A load reads only the boxes that the rank wants. These may differ from the boxes that the
// ranks saved, and so may the number of ranks.
//
// A save follows the same protocol on disks (this header) and in the memories of hosts
// (memory_checkpoint.h):
//
//   1. Agree: all ranks agree on the plan, and that the save before this one has ended.
//   2. Open: choose a place that no reader looks at: a temporary folder, or the slot of the older
//      save after its seal has been broken.
//   3. Write: each rank writes its file there, at the same time as the others, and reports the
//      file's digest or its error, on disks also the first tensor with infinities or NaNs that
//      should have none.
//   4. Seal: once every rank has succeeded, the manifest with all digests is written, and then one
//      step makes the checkpoint valid: the rename of the folder, or, in each memory, the header of
//      the slot. If the memory of one host was not sealed, the files in it do not count, and a load
//      skips the whole save, unless the other memories have all of its files.
//
// A failure before step 4 ends leaves the previous checkpoint valid. On disks, save() returns after
// this rank has copied its boxes; a background thread does the rest (checkpoint_writer.h).
//
//   CheckpointTeam team(group, "run", {.keep = 3});
//   team.save(step, held, {.run = run, .metadata = metadata});
//   ...
//   if (const auto error = team.finish()) ...
//
// A slow disk is not an error. Ranks wait for each other's disks in a background group with a limit
// of its own, CheckpointDirectoryOptions::disk_timeout. They never use the caller's group for this,
// because its timeout is meant for computing. When a disk takes longer than disk_timeout, saves are
// skipped, each with an error in the log, until the disk responds; then the ranks form a new
// background group.
//
// A rank that does not see the directory, because the hosts share no file system, sends its boxes
// to rank 0, which writes them, and receives the boxes that it wants from rank 0.
//
// Cost: memory for one copy of the boxes that the rank writes. The ranks exchange lists of boxes in
// the first save, and in each save for which a rank's boxes differ from those of the previous save;
// in other saves they exchange a few numbers, and reports on the files that they have written.
//
// Thread safety: none.

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/box_plan.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/checkpoint_writer.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {

class CheckpointTeam {
 public:
  // Collective. Errors are those of CheckpointDirectory, on every rank.
  CheckpointTeam(std::shared_ptr<ProcessGroup> group, const std::string& path,
                 const CheckpointDirectoryOptions& options, FileSystem& files = FileSystem::real());
  CheckpointTeam(const CheckpointTeam&) = delete;
  CheckpointTeam& operator=(const CheckpointTeam&) = delete;

  // The directory on rank 0; null on other ranks.
  CheckpointDirectory* directory() { return directory_ ? &*directory_ : nullptr; }
  const CheckpointDirectory* directory() const { return directory_ ? &*directory_ : nullptr; }

  // Collective. Waits for the previous save, copies the boxes that this rank writes, and returns.
  // Later errors are logged and returned by take_error() and finish(); only rank 0 gets the errors
  // of writing files. Error(kInvalid) on every rank when the boxes of all ranks together leave out
  // part of a tensor or reach beyond it, or when ranks disagree on its type or shape.
  void save(std::int64_t step, const std::vector<HeldMemory>& held,
            const CheckpointMetadata& metadata);
  std::optional<Error> take_error() { return writer_.take_error(); }
  // Waits, at most disk_timeout, for the last save to reach the disk; then acts as take_error().
  // Returns Error(kTimeout) after disk_timeout.
  std::optional<Error> finish() { return writer_.finish(); }

  // Collective. Waits until no rank is writing, and returns the background group, whose timeout is
  // long enough to wait for disks. Error(kTimeout) on every rank after disk_timeout.
  ProcessGroup& waiting_group();

  // Collective. Fills the boxes that this rank wants from a checkpoint of `directory()`; returns
  // the bytes read from the disk. Error(kCorrupt) on every rank, with some boxes filled, when a
  // chunk that a rank reads is damaged.
  std::uint64_t read(const Manifest& manifest, const std::vector<WantedBox>& wanted);

 private:
  // The contents of a file of the current save.
  struct Staged {
    int rank = 0;  // the rank that holds its boxes
    std::uint64_t bytes = 0;
    StagingMemory memory;
  };
  // Bytes of this rank's own file that should be finite numbers.
  struct FinitePart {
    std::string tensor;
    Dtype dtype = Dtype::kFloat32;
    std::span<const std::byte> bytes;
  };
  // The files that a rank has written, or the error that stopped it.
  struct Report;

  bool sees(int rank) const { return sees_[static_cast<std::size_t>(rank)]; }
  void form_background();
  bool settle(std::optional<std::int64_t> step);
  void find_who_sees(const std::string& path);
  bool reserve();
  void send_to_rank_0();
  std::string not_finite() const;
  void warn_once(std::int64_t step, const CheckpointMetadata& metadata);
  void write_together(std::int64_t step, const CheckpointMetadata& metadata);
  void read_for_others(const Manifest& manifest, const std::string& folder,
                       const std::vector<WantedBox>& wanted, std::uint64_t& bytes);

  const std::shared_ptr<ProcessGroup> group_;  // shared with the caller
  FileSystem& files_;
  const std::chrono::milliseconds disk_timeout_;  // how long to wait for disks
  std::shared_ptr<ProcessGroup> background_;      // of the same ranks, to wait for disks
  std::atomic<bool> is_broken_ = false;           // background_ has failed
  std::optional<CheckpointDirectory> directory_;  // on rank 0 only
  std::string path_;                              // the path of the directory as this rank sees it
  std::vector<bool> sees_;                        // [rank]: whether it sees the directory
  AgreedPlan plan_;
  bool has_room_ = false;       // `staged_` fits the plan; the same on all ranks
  std::vector<Staged> staged_;  // this rank's own file first; on rank 0 then the files that it
                                // writes for ranks that do not see the directory
  std::vector<FinitePart> finite_parts_;  // in `staged_`
  bool has_warned_ = false;               // about a tensor that is not finite; only on rank 0
  CheckpointWriter writer_;  // destroyed first, because its thread reads the other members
};

}  // namespace paceline
