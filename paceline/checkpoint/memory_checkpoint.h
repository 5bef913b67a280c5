#pragma once

// The newest snapshots of a run in memory that outlives the process which saved them: after the
// death of a rank the job continues from there and reads nothing from a disk.
//
// The memory is a file: a memfd that the launcher holds and passes on as /proc/PID/fd/N, or one in
// /dev/shm. It has two slots, used in turn. A save first takes the seal from the older one, writes
// it, and seals it again, so that a death at any moment leaves the other one whole. Every byte is
// verified on load. docs/checkpoint_format.md has the bytes.
//
// Cost: memory for two snapshots, whatever the number of ranks of a host; a save takes the time of
// a digest and of one copy.
//
// Thread safety: none. One process at a time has the file open.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/checkpoint/checkpoint_directory.h"
#include "paceline/checkpoint/snapshot.h"
#include "paceline/core/fd.h"

namespace paceline {

class MemoryCheckpoint {
 public:
  // Makes the file if it is missing. Error(kInvalid) when another process has it open,
  // Error(kSystem) when it cannot be opened.
  explicit MemoryCheckpoint(std::string path);

  // When it returns, the snapshot survives this process. Error(kSystem) when the memory does not
  // suffice; the snapshot saved before is intact.
  void save(std::int64_t step, int generation, const Snapshot& snapshot);

  // The snapshot saved last that is whole; nothing when there is none.
  std::optional<LoadedCheckpoint> load_newest() const;
  // Its step, without reading it all; a load may still find it damaged and give the one before.
  std::optional<std::int64_t> newest_step() const;

  // Discards what it holds. Error(kSystem) when that cannot be written.
  void forget();

  const std::string& path() const { return path_; }

 private:
  struct Seal;
  std::optional<Seal> seal_of(int slot) const;
  void break_seal(int slot);
  std::optional<LoadedCheckpoint> read(int slot, const Seal& seal) const;

  const std::string path_;
  Fd file_;
};

}  // namespace paceline
