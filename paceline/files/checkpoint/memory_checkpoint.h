#pragma once

// The newest checkpoints of a run, in memory that outlives the processes which saved them: after a
// rank has crashed, the job continues from them and reads nothing from a disk. MemoryCheckpoint is
// the memory of one host, with some of the files of each checkpoint (manifest.h). MemoryTeam
// chooses the files of each memory, and saves and loads with all ranks.
//
// The memory is a file: a memfd that the launcher holds and passes on as /proc/PID/fd/N, or a file
// in /dev/shm. It has two slots, which are used in turn. A save follows the protocol of
// checkpoint_team.h: it invalidates the header of the older slot, writes the data, then writes a
// valid header (the seal). So a crash at any moment leaves the other slot intact.
// checkpoint/FORMAT.md defines the layout.
//
// Thread safety: none for an object. Several processes may write different bytes of a slot at the
// same time; only the process that holds the lock may break or set a seal.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/box_plan.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {

// A sealed slot.
struct SealedSlot {
  int slot = 0;
  std::uint64_t number = 0;  // of the save; a larger number is a newer save
  Manifest manifest;         // of the whole checkpoint; its digests are those of the files' bytes
  std::string id;            // equal for equal manifests
  std::vector<std::uint32_t> files;  // the files in the slot, in the order of their bytes
};

// A slot without a seal, for the next save.
struct OpenSlot {
  int slot = 0;
  std::uint64_t newest = 0;  // number of this memory's newest save, including the one in this slot
};

class MemoryCheckpoint {
 public:
  // Creates the file if it is missing. Error(kSystem) when it cannot be opened.
  explicit MemoryCheckpoint(std::string path);
  // Takes the lock for as long as this object exists. Error(kInvalid) when another object has it.
  void lock();
  // Device and inode, which are equal for two objects of the same memory.
  std::array<std::int64_t, 2> identity() const;

  // The sealed slots, the newest first. The seal of each slot and its list of files are verified;
  // the files themselves are not. A slot with a damaged list is logged and left out.
  std::vector<SealedSlot> sealed() const;

  // Breaks the seal of the older slot. Error(kSystem) when the header cannot be written; seal(),
  // unseal() and forget() throw the same error.
  OpenSlot open_older();
  // Writes bytes into an open slot. Error(kSystem) when there is not enough memory.
  void write(int slot, std::uint64_t position, std::span<const std::byte> bytes);
  // When this returns, the slot survives the process. `files`: the files that were written, in
  // their order.
  void seal(int slot, std::uint64_t number, const std::vector<std::uint32_t>& files,
            const Manifest& manifest);
  void unseal(int slot);
  // Breaks all seals.
  void forget();

  // Reads and checks all of a file that the slot holds.
  bool is_whole(const SealedSlot& sealed, std::uint32_t file) const;
  // Reads bytes of a file that the slot holds. Error(kCorrupt) when the memory ends before them.
  void read(const SealedSlot& sealed, std::uint32_t file, std::uint64_t position,
            std::span<std::byte> bytes) const;

  const std::string& path() const { return path_; }

 private:
  struct Seal;
  std::optional<Seal> seal_of(int slot) const;

  const std::string path_;
  Fd file_;
};

// The ranks of a group that keep checkpoints in the memories of their hosts together. Each rank has
// a file of the checkpoint, as on a disk (box_plan.h). The memories form a ring; each holds the
// files of its own ranks and of the previous memory's ranks. So each of H memories holds 2/H of the
// checkpoint, and if any one is lost, the others have all of it. With one or two memories, each has
// all of it.
//
// A rank writes its file into its own memory. A rank of the next memory writes the same file there:
// from its own elements, or, where it does not hold them, from elements that the file's rank sends.
// All ranks do this at the same time, in pieces of a few MiB, so that no rank needs a larger
// buffer.
//
// Thread safety: none.
class MemoryTeam {
 public:
  // Collective. `path`: the path for MemoryCheckpoint on this rank's host; ranks that share a
  // memory pass the same path. Errors are those of MemoryCheckpoint, on every rank.
  MemoryTeam(std::shared_ptr<ProcessGroup> group, const std::string& path);

  // Collective. Overwrites the older of the two saves. Returns false on every rank, with a line in
  // the log the first time, when a memory cannot be written or copies of a box differ; the previous
  // save is intact. Error(kInvalid) on every rank when boxes leave out elements of a tensor.
  bool save(std::int64_t step, const std::vector<HeldMemory>& held,
            const CheckpointMetadata& metadata);

  // Collective. The newest save that is complete and whose bytes have all been verified. Each newer
  // save that is incomplete or damaged is logged. A save that names a run other than `run` is
  // ignored, unless `run` is empty. nullopt when there is no such save, or when its step is below
  // `at_least`; then its bytes are not read.
  std::optional<Manifest> newest(std::int64_t at_least, const std::string& run);
  // Collective. Fills the boxes in `wanted` with the checkpoint that newest() returned, and breaks
  // the seals of newer saves. Error(kCorrupt) on every rank when one of the memories cannot be
  // read.
  void read(const std::vector<WantedBox>& wanted);

  // Local. The manifest of the newest save in this memory, on the memory's first rank; nullopt on
  // other ranks. The files are not verified.
  std::optional<Manifest> newest_here() const;
  // Local. Discards the contents of the memory. Requires: this is the memory's first rank.
  void forget() { memory_->forget(); }
  const std::string& path() const { return memory_->path(); }

 private:
  // A file that this rank writes into its memory.
  struct Stream;
  // The checkpoint that newest() has chosen.
  struct Chosen {
    std::uint64_t number = 0;
    Manifest manifest;
    std::vector<int> roots;  // [file]: the rank that reads it
    // The slot of this memory that has the checkpoint's files; set on the memory's first rank.
    std::optional<SealedSlot> here;
  };

  int memory_of(int rank) const { return memories_.host_of[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& ranks_of(int memory) const;
  int memory_after(int memory) const { return (memory + 1) % static_cast<int>(memories_.size()); }
  std::optional<int> second_writer(int rank) const;
  bool is_keeper() const { return memories_.neighbours(group_->rank()).front() == group_->rank(); }
  std::vector<int> writers_here() const;
  std::vector<std::unique_ptr<Stream>> streams() const;
  std::optional<Error> write(int slot, const std::vector<HeldMemory>& held,
                             const std::vector<std::unique_ptr<Stream>>& streams);
  std::vector<ManifestFile> files_with(const std::vector<std::string>& digests) const;
  bool no_rank_failed(std::int64_t step, const std::optional<Error>& failure);

  const std::shared_ptr<ProcessGroup> group_;  // shared with the caller
  std::optional<MemoryCheckpoint> memory_;     // set by the constructor
  Hosts memories_;                             // each memory counts as a host
  AgreedPlan plan_;
  std::optional<Chosen> chosen_;
  bool failure_is_logged_ = false;  // only the first failed save is logged
};

}  // namespace paceline
