#pragma once

// A folder of checkpoints on a disk: commits, finds and removes them, and keeps the mark that names
// the run to which they belong. checkpoint/FORMAT.md defines the layout.
//
// Thread safety: none; one thread at a time. Any number of readers may load while one writer saves.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/writer_claim.h"

namespace paceline {

// Names the run of a directory's checkpoints, in DIR/.run, so that no job mistakes the state of an
// older job for its own.
struct RunMark {
  std::string run;  // chosen at random when the run begins; the jobs that continue it keep it
  // The launcher's name for the job whose restarts continue the run automatically; nullopt: no
  // job's restarts continue it.
  std::optional<std::string> job;
  // The seed of the run's sampler and transforms; messages that tell two runs apart show it.
  std::optional<std::uint64_t> seed;

  bool operator==(const RunMark&) const = default;
};

// Returns nullopt when there is no mark. An invalid mark is logged and counts as none.
std::optional<RunMark> read_run_mark(const std::string& directory,
                                     FileSystem& files = FileSystem::real());

// Replaces the mark in one step: writes a file in `workspace` (writer_claim.h), then renames it.
// The mark is on the disk when this returns. After an Error(kSystem) the directory has the previous
// mark or, if only the sync failed, the new one.
void write_run_mark(const std::string& directory, const std::string& workspace, const RunMark& mark,
                    FileSystem& files = FileSystem::real());

class FileSystem;
class WriterClaim;
struct Manifest;
struct RunMark;

struct CheckpointDirectoryOptions {
  int keep = 3;            // the number of newest checkpoints that remain after a save
  bool read_only = false;  // do not create, lock or clean up the folder; saving is an error
  WriterId writer = {};    // the job that writes, and its generation
  // How long a writer waits for another live writer that it may not replace. On a network file
  // system, a writer on a host that has vanished counts as alive until the server releases its
  // locks.
  std::chrono::milliseconds lock_timeout{0};
  // How long the ranks of a CheckpointTeam wait for each other's disks, never less than the group's
  // timeout. After that time saves are skipped until the disks respond. The default is long,
  // because a slow file system is not an error.
  std::chrono::milliseconds disk_timeout = std::chrono::hours(1);
};

// A folder of checkpoints. The newest undamaged one can always be loaded, at whatever moment the
// writer was killed and whatever the disk did afterwards.
//
//   DIR/step-00000042/manifest.json              written last: tensors, boxes, files (manifest.h)
//   DIR/step-00000042/boxes-00000-of-00002.bin   one for each rank that writes (box_file.h)
//   DIR/.writer-00000001/                        the one writer's workspace (writer_claim.h)
//   DIR/.run                                     the RunMark
//
// A save writes into a temporary folder of the writer's workspace, syncs every file and the folder,
// and only then renames the folder to its final name: that rename is the commit.
// checkpoint_directory.cpp argues step by step why a kill or a power cut at any moment leaves a
// checkpoint that can be loaded, and names the one exception. The path of the directory may contain
// symbolic links; below the directory none is followed. Ranks save and load together through a
// CheckpointTeam (checkpoint_team.h).
class CheckpointDirectory {
 public:
  // A writer creates the folder, claims it for as long as this object exists, and removes the
  // unfinished work of earlier writers. Errors of WriterClaim; Error(kSystem) when the folder
  // cannot be created.
  explicit CheckpointDirectory(std::string path, CheckpointDirectoryOptions options = {});
  ~CheckpointDirectory();
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;

  std::string folder_of(std::int64_t step) const;
  // Reads and checks every byte. Error(kInvalid), with the steps that exist, when there is no
  // checkpoint of this step; Error(kCorrupt) when the checkpoint is damaged.
  void verify(std::int64_t step) const;

  // Removes all checkpoints except the newest `keep`, the newest one that verifies, and the newest
  // one without infinities and NaNs (Manifest::kNotFinite); returns the removed steps.
  // Error(kAborted) when another writer has taken over. Requires: opened for writing.
  std::vector<std::int64_t> prune_to(int keep);

  // Error(kInvalid), with the steps that exist, when there is no checkpoint of this step.
  void require_step(std::int64_t step) const;
  // The steps that have a committed folder, in ascending order. The checkpoints are not verified.
  std::vector<std::int64_t> list() const;

  // The number of checkpoints that the disk has room for; nullopt if it was never full.
  std::optional<int> room() const { return room_; }

  const std::string& path() const { return path_; }

 public:  // internal
  CheckpointDirectory(std::string path, CheckpointDirectoryOptions options, FileSystem& files);
  // Saves a checkpoint: calls `write`, which writes the files into the folder that it is given and
  // returns their manifest; then commits the folder. When this returns, the checkpoint survives a
  // power cut. A checkpoint of the same step is replaced. Then the checkpoints up to this step are
  // removed, except the newest `keep`. Checkpoints of later steps, which exist when an older step
  // was loaded, stay.
  // After an error the unfinished checkpoint is removed, the older ones are intact and the caller
  // may go on. Error(kAborted) means that a newer generation has taken over; nothing was changed.
  // When `write` throws DiskFull, the oldest checkpoint is removed, but never the newest one that
  // verifies, and `write` is called again. From then on the oldest is removed before each save. If
  // all checkpoints to keep have infinities or NaNs, the newest one without them stays as well.
  // Requires: step >= 0, opened for writing.
  using WriteFiles = std::function<Manifest(const std::string& folder)>;
  void save_files(std::int64_t step, const WriteFiles& write);
  // Among the checkpoints of steps before `before`, finds the newest whose manifest can be read and
  // names no run other than `run` (if `run` is empty, any run). Its tensors are not verified.
  // `on_refused` is called with the reason for each newer checkpoint that was skipped.
  using OnRefused = std::function<void(std::int64_t step, const std::string& reason)>;
  std::optional<Manifest> newest_before(std::int64_t before, const std::string& run,
                                        const OnRefused& on_refused) const;
  // Reads and checks the manifest, not the files. Error(kCorrupt) when it cannot be used.
  Manifest read_manifest(std::int64_t step) const;
  // The mark of this directory, as read_run_mark() returns it.
  std::optional<RunMark> mark() const;
  // Throws the errors of write_run_mark(), and the Error(kAborted) of save_files(). Requires:
  // opened for writing.
  void set_mark(const RunMark& mark);
  FileSystem& files() const { return files_; }
  // The folder in which a writer prepares its changes before it commits them. Requires: opened for
  // writing.
  const std::string& workspace() const;

 private:
  std::string temporary_folder(std::int64_t step) const;
  const WriterClaim& claim() const;
  [[noreturn]] void rethrow() const;
  bool make_room(std::int64_t newest);
  void note_room(std::int64_t newest);
  void commit(const std::string& temporary, std::int64_t step, const Manifest& manifest);
  void prune(std::int64_t newest, int keep) noexcept;
  std::vector<std::int64_t> list_up_to(std::int64_t newest) const;
  bool verifies(std::int64_t step) const noexcept;
  bool is_finite(std::int64_t step) const noexcept;  // by Manifest::kNotFinite
  bool remove_checkpoint(std::int64_t step);
  // Only logs an error: the next writer removes what is left.
  void remove_folder(const std::string& folder) noexcept;

  std::string path_;  // without symbolic links
  const CheckpointDirectoryOptions options_;
  FileSystem& files_;
  std::optional<int> room_;
  std::unique_ptr<WriterClaim> claim_;  // only a writer has one
};

}  // namespace paceline
