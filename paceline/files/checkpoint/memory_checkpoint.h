#pragma once

// The newest checkpoints of a run in memory that outlives the processes which saved them: after the
// death of a rank the job continues from there and reads nothing from a disk. MemoryCheckpoint is
// the memory of one host, with some files of each checkpoint (manifest.h); MemoryTeam decides
// which, and saves and loads with all ranks.
//
// The memory is a file: a memfd that the launcher holds and passes on as /proc/PID/fd/N, or one in
// /dev/shm. It has two slots, used in turn. A save invalidates the header of the older slot,
// writes the data, then writes a valid header (the seal), so that a death at any moment leaves the
// other slot whole.
// docs/checkpoint_format.md has the bytes.
//
// Thread safety: none for an object. Processes may write different bytes of a slot at once; only
// one, which has the lock, breaks seals and sets them.

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
  std::uint64_t number = 0;  // of the save: the larger is the newer
  Manifest manifest;         // of the whole checkpoint; digests are those of the files' bytes
  std::string id;            // the same for the same checkpoint
  std::vector<std::uint32_t> files;  // those of it that are here, one after the other
};

// A slot that has no seal, to be written.
struct OpenSlot {
  int slot = 0;
  std::uint64_t newest = 0;  // the number of the newest save here, also when that was this slot's
};

class MemoryCheckpoint {
 public:
  // Makes the file if it is missing. Error(kSystem) when it cannot be opened.
  explicit MemoryCheckpoint(std::string path);
  // Until this object ends. Error(kInvalid) when another one has the lock.
  void lock();
  // Device and inode: the same for two objects of the same memory.
  std::array<std::int64_t, 2> identity() const;

  // The sealed slots, the newest first. Seal and list are verified, the files are not. A damaged
  // slot is left out, with a line in the log.
  std::vector<SealedSlot> sealed() const;

  // Takes the seal from the older slot. Error(kSystem), here and below, when it cannot be written.
  OpenSlot open_older();
  // Error(kSystem) when the memory does not suffice.
  void write(int slot, std::uint64_t position, std::span<const std::byte> bytes);
  // When it returns, the slot survives this process. `files`: what was written, in this order.
  void seal(int slot, std::uint64_t number, const std::vector<std::uint32_t>& files,
            const Manifest& manifest);
  void unseal(int slot);
  // Discards what it holds.
  void forget();

  // Reads all of a file that the slot has.
  bool is_whole(const SealedSlot& sealed, std::uint32_t file) const;
  // Bytes of a file that the slot has; Error(kCorrupt) when it ends before them.
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
// a file of the checkpoint, as on a disk (box_plan.h); a memory has the files of its own ranks and
// those of the memory before it, in a ring. So H of them keep 2/H of the checkpoint each, and
// whichever is lost, the others have all of it; with one or two, each has all.
//
// A rank writes its file into its own memory, and a rank of the next one writes it there: from what
// it holds itself, where it holds the same elements, else as it gets it. All do that at the same
// time, a piece of a few MiB after the other, so that no rank needs memory of its own for more.
//
// Thread safety: none.
class MemoryTeam {
 public:
  // Collective. `path` is that of MemoryCheckpoint on this rank's host; ranks that have the same
  // memory share it. Its errors, on every rank.
  MemoryTeam(std::shared_ptr<ProcessGroup> group, const std::string& path);

  // Collective. Overwrites the older one of two. False on every rank, with a line in the log the
  // first time, when the memory of some host does not suffice; the one saved before is intact.
  // Error(kInvalid) on every rank when what the ranks hold does not make whole tensors.
  bool save(std::int64_t step, const std::vector<HeldMemory>& held, const CheckpointWords& words);

  // Collective. The checkpoint saved last that is complete and whole, all its bytes verified, with
  // a line in the log for each newer one that is not; one that is known to be of another run than
  // `run` does not count. Nothing when there is none, or its step is below `at_least`; it is not
  // read then.
  std::optional<Manifest> newest(std::int64_t at_least, const std::string& run);
  // Collective. Fills what this rank wants of what newest() gave. What was saved after that is
  // forgotten. Error(kCorrupt) on every rank when a memory cannot be read.
  void read(const std::vector<WantedBox>& wanted);

  // Local: what the memory says that was saved last, on its first rank; nothing elsewhere.
  std::optional<Manifest> newest_here() const;
  // Local: discards what the memory holds. Requires: its first rank.
  void forget() { memory_->forget(); }
  const std::string& path() const { return memory_->path(); }

 private:
  // A file that this rank writes into its memory.
  struct Stream;
  // What newest() has chosen.
  struct Chosen {
    std::uint64_t number = 0;
    Manifest manifest;
    std::vector<int> roots;          // of each file: the rank that reads it
    std::optional<SealedSlot> here;  // on a memory's first rank, where that has some of it
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
  bool all_have(std::int64_t step, const std::optional<Error>& failure);

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  std::optional<MemoryCheckpoint> memory_;     // once opened: always
  Hosts memories_;                             // as if each memory were a host
  AgreedPlan plan_;
  std::optional<Chosen> chosen_;
  bool said_ = false;
};

}  // namespace paceline
