#pragma once

// The newest checkpoints of a run in memory that outlives the processes which saved them: after the
// death of a rank the job continues from there and reads nothing from a disk. What a host's memory
// has of them are some of their files (manifest.h); memory_team.h says which.
//
// The memory is a file: a memfd that the launcher holds and passes on as /proc/PID/fd/N, or one in
// /dev/shm. It has two slots, used in turn. A save first takes the seal from the older one, writes
// it, and seals it again, so that a death at any moment leaves the other one whole.
// docs/checkpoint_format.md has the bytes.
//
// Thread safety: none for an object. Processes may write different bytes of a slot at once; only
// one, which has the lock, breaks seals and sets them.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/fd.h"
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

  // Of one damaged there is a line in the log. What seal and list say is verified, the files are
  // not. The newest first.
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

}  // namespace paceline
