#pragma once

// A folder of checkpoints on a disk: committing them, finding and removing them; and the mark that
// tells to which run they belong. docs/checkpoint_format.md has the bytes.
//
// Thread safety: none; one thread at a time. Any number of readers may load while one writer saves.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/files/checkpoint/writer_claim.h"

namespace paceline {

// The run of a directory's checkpoints, in DIR/.run, so that no job takes an older one's state for
// its own.
struct RunMark {
  std::string run;  // chosen at random when it began; kept by the jobs that continue it
  // The launcher's name for the job whose restarts continue the run unasked; nothing: no job's do.
  std::optional<std::string> job;
  // The seed of the run's sampler and transforms; shown beside the run where two are confused.
  std::optional<std::uint64_t> seed;

  bool operator==(const RunMark&) const = default;
};

// Returns nothing when there is no mark. A mark that makes no sense counts as none, and is logged.
std::optional<RunMark> read_run_mark(const std::string& directory,
                                     FileSystem& files = FileSystem::real());

// Replaces the mark in one step, by a file that is first written in `workspace` (writer_claim.h).
// The mark is on the disk when this returns. On an Error(kSystem) the mark before it stays.
void write_run_mark(const std::string& directory, const std::string& workspace, const RunMark& mark,
                    FileSystem& files = FileSystem::real());

struct CheckpointDirectoryOptions {
  int keep = 3;            // how many checkpoints, the newest, remain after a save
  bool read_only = false;  // neither create, lock nor clean; saving is an error
  WriterId writer = {};    // who writes: the job and its generation
  // How long a writer waits for another live one that it may not take over from. On a network file
  // system the writer of a host that has vanished counts as alive until the server gives up its
  // locks.
  std::chrono::milliseconds lock_timeout{0};
  // How long the ranks of a CheckpointTeam wait for each other's disks; at least as long as for
  // each other's collectives. A slow file system is not treated as an error.
  std::chrono::milliseconds disk_timeout = std::chrono::hours(1);
};

// A folder of checkpoints of which the newest good one can always be loaded, whenever the writer
// was killed and whatever the disk did since.
//
//   DIR/step-00000042/manifest.json              written last: tensors, boxes, files (manifest.h)
//   DIR/step-00000042/boxes-00000-of-00002.bin   one for each rank that writes (box_file.h)
//   DIR/.writer-00000001/                        the one writer's workspace (writer_claim.h)
//   DIR/.run                                     the RunMark
//
// A save writes into a temporary folder of the writer's workspace, syncs every file and the folder,
// and only then gives the folder its name: that rename is the commit. checkpoint_directory.cpp
// argues step by step why a kill or a power cut at any moment leaves a checkpoint that can be
// loaded. Every byte that is read is verified before it is returned. The path of the folder may
// lead over symbolic links; in the folder none is followed. Ranks save and load together by
// checkpoint_team.h.
class CheckpointDirectory {
 public:
  // A writer creates the folder, claims it for its lifetime and removes what earlier writers left
  // half-written. Errors of WriterClaim; Error(kSystem) when the folder cannot be made.
  explicit CheckpointDirectory(std::string path, CheckpointDirectoryOptions options = {},
                               FileSystem& files = FileSystem::real());
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;

  // Saves a checkpoint of the files that `write` makes in the folder that it is given. When it
  // returns, the checkpoint survives a power cut. On an error the half-written one is removed, the
  // older ones are intact and the caller may go on, unless it is Error(kAborted): a newer
  // generation has taken over, nothing was changed. A checkpoint of the same step is replaced.
  // Older ones beyond `keep` are then removed; later ones, from before an older step was loaded,
  // stay. When `write` throws DiskFull, older ones are removed, but never the newest that verifies,
  // and `write` is called again; once there was no room for one more, the oldest goes before each
  // save. Requires: step >= 0, a writer.
  using WriteFiles = std::function<Manifest(const std::string& folder)>;
  void save_files(std::int64_t step, const WriteFiles& write);

  // The newest checkpoint of a step before `before` whose manifest can be read and is not known to
  // be of another run than `run` (empty: any run will do). Its tensors are not verified.
  // `on_refused` is called for each newer one, with the reason.
  using OnRefused = std::function<void(std::int64_t step, const std::string& reason)>;
  std::optional<Manifest> newest_before(std::int64_t before, const std::string& run,
                                        const OnRefused& on_refused) const;

  // The manifest is checked by itself, the files are not. Error(kCorrupt) when it cannot be used.
  Manifest read_manifest(std::int64_t step) const;
  std::string folder_of(std::int64_t step) const;
  // Reads every byte. Error(kInvalid) naming the existing steps when this one does not exist;
  // Error(kCorrupt) when it does not verify.
  void verify(std::int64_t step) const;

  // Removes all checkpoints except the newest `keep` and the newest one that verifies; returns
  // which it removed. Errors as save_files(). Requires: a writer.
  std::vector<std::int64_t> prune_to(int keep);

  // Error(kInvalid) naming the existing steps when this one does not exist.
  void require_step(std::int64_t step) const;
  // The steps that have a committed folder, ascending; not verified.
  std::vector<std::int64_t> list() const;

  // Reads the RunMark.
  std::optional<RunMark> mark() const { return read_run_mark(path_, files_); }
  // Errors of write_run_mark() and, as save_files(), Error(kAborted).
  void set_mark(const RunMark& mark);

  // The number of checkpoints that the disk has room for; nothing as long as it was never full.
  std::optional<int> room() const { return room_; }

  const std::string& path() const { return path_; }
  FileSystem& files() const { return files_; }
  // Where a writer prepares what it commits. Requires: a writer.
  const std::string& workspace() const { return claim_->workspace(); }

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
  bool remove_checkpoint(std::int64_t step);
  // An error is only logged: the next writer removes what stays behind.
  void remove_folder(const std::string& folder) noexcept;

  std::string path_;  // without symbolic links
  const CheckpointDirectoryOptions options_;
  FileSystem& files_;
  std::optional<int> room_;
  std::optional<WriterClaim> claim_;  // only a writer has one
};

}  // namespace paceline
