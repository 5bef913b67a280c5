#pragma once

// A folder of checkpoints of which the newest good one can always be loaded, whenever the writer
// was killed and whatever the disk did since.
//
//   DIR/step-00000042/manifest.json                        written last: files, sizes, digests
//   DIR/step-00000042/state-00000-of-00001.safetensors     one file a shard; replicas write one
//   DIR/step-00000043.tmp-<random>/                        being written; of no value to anybody
//   but its writer DIR/.lock                                              held by the one writer
//
// A save writes into a temporary folder, syncs every file and the folder, and only then gives it
// its name: a rename is the commit. Every byte is verified on load before anything is returned.
// Cost: a load reads a checkpoint into memory once; a save copies nothing.
// docs/checkpoint_format.md has the bytes.
//
// Thread safety: none; one thread at a time. Any number of readers may load while one writer saves.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/checkpoint/file_system.h"
#include "paceline/checkpoint/snapshot.h"
#include "paceline/core/fd.h"

namespace paceline {

struct CheckpointDirectoryOptions {
  int keep = 3;            // how many checkpoints, the newest, remain after a save
  bool read_only = false;  // neither create, lock nor clean; save() is an error
  // How long a writer waits for another one's lock. A host that has vanished keeps its own on a
  // network file system until the server gives it up.
  std::chrono::milliseconds lock_timeout{0};
};

struct RefusedCheckpoint {
  std::int64_t step = 0;
  std::string reason;  // file, expected, found
};

// Owns the bytes that `snapshot` points into; moving it keeps them where they are.
struct LoadedCheckpoint {
  LoadedCheckpoint() = default;
  LoadedCheckpoint(LoadedCheckpoint&&) = default;
  LoadedCheckpoint& operator=(LoadedCheckpoint&&) = default;

  std::int64_t step = 0;
  Snapshot snapshot;
  std::vector<RefusedCheckpoint> refused;  // newer ones that did not verify, newest first
  std::vector<std::vector<std::byte>> storage;
};

class CheckpointDirectory {
 public:
  // A writer creates the folder, locks it for its lifetime and removes what dead writers left
  // half-written. Error(kInvalid) when another process holds the lock (the lock of a dead one is
  // free) for lock_timeout, Error(kSystem) when the folder cannot be made.
  explicit CheckpointDirectory(std::string path, CheckpointDirectoryOptions options = {},
                               FileSystem& files = FileSystem::real());
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;

  // When it returns, the checkpoint survives a power cut. On an error the half-written one is
  // removed, the older ones are intact and the caller may go on. A checkpoint of the same step is
  // replaced. Older ones beyond `keep` are then removed; later ones, of a future that was left by
  // loading an older step, stay. Requires: step >= 0, a writer.
  void save(std::int64_t step, const Snapshot& snapshot);

  // The newest checkpoint that verifies; each newer one that does not is logged and listed in
  // `refused`. Empty when there is none at all; Error(kCorrupt) with every reason when none of them
  // verifies.
  std::optional<LoadedCheckpoint> load_newest() const;

  // Error(kInvalid) naming the steps there are when this one is not; Error(kCorrupt) when it does
  // not verify.
  LoadedCheckpoint load(std::int64_t step) const;

  // The steps that have a committed folder, ascending; not verified.
  std::vector<std::int64_t> list() const;

  const std::string& path() const { return path_; }

 private:
  std::string folder_of(std::int64_t step) const;
  void lock();
  void remove_leftovers() noexcept;
  void write_folder(const std::string& folder, std::int64_t step, const Snapshot& snapshot);
  void commit(const std::string& temporary, std::int64_t step);
  void prune(std::int64_t newest) noexcept;
  // Best effort, logged: what stays behind is found again by the next writer.
  void remove_folder(const std::string& folder) noexcept;
  LoadedCheckpoint read_folder(std::int64_t step) const;

  const std::string path_;
  const CheckpointDirectoryOptions options_;
  FileSystem& files_;
  Fd lock_;
};

}  // namespace paceline
