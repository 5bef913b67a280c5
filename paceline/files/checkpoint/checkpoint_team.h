#pragma once

// The ranks of a group that save and load a checkpoint together, each rank the part that it holds:
// the one way in which checkpoints are written. A save copies on every rank the boxes that this
// rank writes, and returns; then each rank writes its own file, all at the same time, and rank 0
// gives the checkpoint its name when all files are on the disk. A load reads what the rank wants,
// and nothing else: it may hold other parts than any rank that saved, in any number of ranks. One
// process alone saves in a group of one rank.
//
//   CheckpointTeam team(group, "run", {.keep = 3});
//   team.save(step, held, {.run = run, .metadata = words});
//   ...
//   if (const auto error = team.finish()) ...
//
// A slow disk is not treated as an error. Ranks wait for each other's disks in a group of their
// own, for up to CheckpointDirectoryOptions::disk_timeout, and never in the group that was given,
// whose time limit is made for computing. When even that passes, saves are left out (an error,
// which is logged) until the disk is back; the group of the disks is then made anew.
//
// Ranks whose host does not have the directory, because its hosts share no file system, send what
// they hold to rank 0, which writes it, and get from it what they want.
//
// Cost: memory for one copy of what the rank writes. The first save, and each save after the ranks
// hold other boxes than before, exchanges lists of boxes; every other save exchanges one number.
//
// Thread safety: none.

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/box_plan.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/checkpoint_writer.h"

namespace paceline {

class CheckpointTeam {
 public:
  // Collective. Errors are those of CheckpointDirectory, on every rank.
  CheckpointTeam(std::shared_ptr<ProcessGroup> group, const std::string& path,
                 const CheckpointDirectoryOptions& options, FileSystem& files = FileSystem::real());
  CheckpointTeam(const CheckpointTeam&) = delete;
  CheckpointTeam& operator=(const CheckpointTeam&) = delete;

  // Rank 0's; null elsewhere.
  CheckpointDirectory* directory() { return directory_ ? &*directory_ : nullptr; }
  const CheckpointDirectory* directory() const { return directory_ ? &*directory_ : nullptr; }

  // Collective. Returns once this rank has copied what it writes; before that it waits for the rest
  // of the previous save. What goes wrong later is logged and given by take_error() and finish(),
  // on rank 0 all of it. Error(kInvalid) on every rank when what the ranks hold does not make whole
  // tensors.
  void save(std::int64_t step, const std::vector<HeldMemory>& held, const CheckpointWords& words);
  std::optional<Error> take_error() { return writer_.take_error(); }
  // Waits until what was saved is on the disk, for at most the disks' time.
  std::optional<Error> finish() { return writer_.finish(); }

  // Collective. Waits until nothing is being written, and gives a group of the same ranks in which
  // they may wait for each other's disks. Error(kTimeout) on every rank after the disks' time.
  ProcessGroup& waiting_group();

  // Collective. Fills what this rank wants of a checkpoint of `directory()`; returns the bytes read
  // from the disk. Error(kCorrupt) on every rank, with some filled, when any of it is damaged.
  std::uint64_t read(const Manifest& manifest, const std::vector<WantedBox>& wanted);

 private:
  // A file of the save under way, in memory.
  struct Staged {
    int rank = 0;  // that holds its boxes
    std::uint64_t bytes = 0;
    StagingMemory memory;
  };
  // The files that a rank wrote, or the error that stopped it.
  struct Report;

  bool sees(int rank) const { return sees_[static_cast<std::size_t>(rank)]; }
  void form_background();
  bool settle(std::optional<std::int64_t> step);
  void find_who_sees(const std::string& path);
  bool reserve();
  void carry();
  void write_together(std::int64_t step, const CheckpointWords& words);
  void read_for_others(const Manifest& manifest, const std::string& folder,
                       const std::vector<WantedBox>& wanted, std::uint64_t& bytes);

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  FileSystem& files_;
  const std::chrono::milliseconds patience_;      // with disks
  std::shared_ptr<ProcessGroup> background_;      // the same ranks; here they wait for disks
  std::atomic<bool> is_broken_ = false;           // background_ has failed
  std::optional<CheckpointDirectory> directory_;  // rank 0's
  std::string path_;                              // of the directory, as this rank sees it
  std::vector<bool> sees_;                        // by rank: whether it can write there
  AgreedPlan plan_;
  bool has_room_ = false;       // for what the plan says; the same on all ranks
  std::vector<Staged> staged_;  // first this rank's own file; on rank 0 then those that it writes
                                // for ranks that do not see the directory
  CheckpointWriter writer_;     // destroyed first, because its thread reads the other members
};

}  // namespace paceline
