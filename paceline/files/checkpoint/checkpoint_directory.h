#pragma once

// To which run the checkpoints of a directory belong, in DIR/.run, so that no job takes an older
// one's state for its own. docs/checkpoint_format.md has the text.
//
// Thread safety: pure functions but for the file.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/files/checkpoint/writer_claim.h"

namespace paceline {

struct RunMark {
  std::string run;  // chosen at random when it began; kept by the jobs that continue it
  // The launcher's name for the job whose restarts go on with it unasked; nothing: no job's do.
  std::optional<std::string> job;
  // Of its sampler and its transforms; shown beside the run where two are confused.
  std::optional<std::uint64_t> seed;

  bool operator==(const RunMark&) const = default;
};

// Nothing when there is none. One that makes no sense counts as none, and is logged.
std::optional<RunMark> read_run_mark(const std::string& directory,
                                     FileSystem& files = FileSystem::real());

// Replaces it in one step, by a file that is first written in `workspace` (writer_claim.h); on the
// disk when it returns. Error(kSystem) when it cannot; the one before it stays.
void write_run_mark(const std::string& directory, const std::string& workspace, const RunMark& mark,
                    FileSystem& files = FileSystem::real());

// A folder of checkpoints of which the newest good one can always be loaded, whenever the writer
// was killed and whatever the disk did since.
//
//   DIR/step-00000042/manifest.json              written last: tensors, boxes, files (manifest.h)
//   DIR/step-00000042/boxes-00000-of-00002.bin   one for each rank that writes (box_file.h)
//   DIR/.writer-00000001/                        the one writer's workspace
//   DIR/.run                                     whose checkpoints they are (run_mark.h)
//
// A save writes into a temporary folder of the writer's workspace, syncs every file and the folder,
// and only then gives it its name: a rename is the commit. A newer generation of the job takes over
// from an older one that is frozen, whose commits then fail (writer_claim.h). Every byte that is
// read is verified before it is returned. The path of the folder may lead over symbolic links; in
// the folder none is followed. Ranks save and load together by checkpoint_team.h; what is here for
// whole snapshots is for one process. docs/checkpoint_format.md has the bytes.
//
// Thread safety: none; one thread at a time. Any number of readers may load while one writer saves.

struct CheckpointDirectoryOptions {
  int keep = 3;            // how many checkpoints, the newest, remain after a save
  bool read_only = false;  // neither create, lock nor clean; save() is an error
  WriterId writer = {};
  // How long a writer waits for another live one that it may not take over from. On a network file
  // system the writer of a host that has vanished counts as alive until the server gives up its
  // locks.
  std::chrono::milliseconds lock_timeout{0};
  // How long the ranks of a CheckpointTeam wait for each other's disks; at least as long as for
  // each other's collectives. A slow file system is no fault.
  std::chrono::milliseconds disk_timeout = std::chrono::hours(1);
};

// Where a checkpoint comes from, as its manifest says.
struct CheckpointOrigin {
  std::int64_t step = 0;
  std::string run;  // empty: not known
  std::map<std::string, std::string> metadata;
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
  std::vector<std::byte> storage;
};

class CheckpointDirectory {
 public:
  // A writer creates the folder, claims it for its lifetime and removes what earlier writers left
  // half-written. Errors of WriterClaim; Error(kSystem) when the folder cannot be made.
  explicit CheckpointDirectory(std::string path, CheckpointDirectoryOptions options = {},
                               FileSystem& files = FileSystem::real());
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;

  // When it returns, the checkpoint survives a power cut. On an error the half-written one is
  // removed, the older ones are intact and the caller may go on, unless it is Error(kAborted): a
  // newer generation has taken over, nothing was changed. A checkpoint of the same step is
  // replaced. Older ones beyond `keep` are then removed; later ones, from before an older step was
  // loaded, stay. On a full disk older ones are removed first, but never the newest that verifies;
  // once there was no room for one more, the oldest goes before each save. Requires: step >= 0, a
  // writer.
  void save(std::int64_t step, const Snapshot& snapshot);
  // The same, of files that `write` makes in the folder that it is given; called again after room
  // was made on a full disk, of which it says by DiskFull.
  using WriteFiles = std::function<Manifest(const std::string& folder)>;
  void save_files(std::int64_t step, const WriteFiles& write);

  // The newest checkpoint that verifies and is not known to be of another run than `run` (empty:
  // any run will do); each newer one is logged and listed in `refused`. Empty when there is none at
  // all; Error(kCorrupt) with every reason when none can be used.
  std::optional<LoadedCheckpoint> load_newest(const std::string& run = "") const;

  // Of the newest checkpoint whose manifest can be read; its tensors are not verified.
  std::optional<CheckpointOrigin> newest_origin() const;

  // Error(kInvalid) naming the existing steps when this one does not exist; Error(kCorrupt) when it
  // does not verify.
  LoadedCheckpoint load(std::int64_t step) const;

  // Of this checkpoint: checked by itself, the files not yet. Error(kCorrupt) when it cannot be
  // used.
  Manifest read_manifest(std::int64_t step) const;
  std::string folder_of(std::int64_t step) const;
  // Reads every byte; errors as load().
  void verify(std::int64_t step) const;

  // Removes all checkpoints except the newest `keep` and the newest one that verifies; returns
  // which it removed. Errors as save(). Requires: a writer.
  std::vector<std::int64_t> prune_to(int keep);

  // Error(kInvalid) naming the existing steps when this one does not exist.
  void require_step(std::int64_t step) const;
  // The steps that have a committed folder, ascending; not verified.
  std::vector<std::int64_t> list() const;

  // Whose checkpoints they are; errors of write_run_mark and, as save(), Error(kAborted).
  std::optional<RunMark> mark() const { return read_run_mark(path_, files_); }
  void set_mark(const RunMark& mark);

  // For how many checkpoints the disk has room, once it was full.
  std::optional<int> room() const { return room_; }

  const std::string& path() const { return path_; }
  FileSystem& files() const { return files_; }
  // Where a writer prepares what it commits. Requires: a writer.
  const std::string& workspace() const { return claim_->workspace(); }

 private:
  std::string temporary_folder(std::int64_t step) const;
  void change(const std::function<void()>& action);
  void save_once(std::int64_t step, const WriteFiles& write);
  bool make_room(std::int64_t newest);
  void note_room(std::int64_t newest);
  void write_folder(const std::string& folder, const WriteFiles& write);
  void commit(const std::string& temporary, std::int64_t step);
  void prune(std::int64_t newest, int keep) noexcept;
  std::vector<std::int64_t> list_up_to(std::int64_t newest) const;
  bool verifies(std::int64_t step) const noexcept;
  bool remove_checkpoint(std::int64_t step);
  // Best effort, logged: what stays behind is found again by the next writer.
  void remove_folder(const std::string& folder) noexcept;
  LoadedCheckpoint read_folder(std::int64_t step, const std::string& run) const;

  std::string path_;  // without symbolic links
  const CheckpointDirectoryOptions options_;
  FileSystem& files_;
  std::optional<int> room_;
  std::optional<WriterClaim> claim_;  // a writer's
};

}  // namespace paceline
