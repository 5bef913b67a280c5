#pragma once

// Decides which process writes into a directory of checkpoints. Each writer has a number and a
// workspace; only the writer with the highest number may write.
//
//   DIR/.writer-00000007/owner.json   names the writer, which keeps this file locked while alive
//   DIR/.writer-00000007/...          files that the writer is writing or removing
//
// A writer changes the checkpoints only by renames out of its workspace and into it. Its successor
// first moves the whole workspace away, after which each of these renames fails. So a writer that
// was frozen at any point and wakes up can neither commit nor remove anything, without any check
// before the commit. A process takes the next number by renaming a prepared workspace. That rename
// succeeds for only one of several competitors, and none of them waits for a lock.
//
// Thread safety: none; one thread at a time.

#include <chrono>
#include <cstdint>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/files/checkpoint/file_system.h"

namespace paceline {

// The job that a writer belongs to, and its generation. A value.
struct WriterId {
  std::string job;  // the launcher's name for the job; empty: not known
  int generation = 0;
};

class WriterClaim {
 public:
  // Takes over from a writer that has ended, and at once from an older generation of the same job,
  // whether that generation is alive, frozen or has vanished with its host. Waits for any other
  // writer that is alive. At the timeout, Error(kInvalid) names that writer; Error(kAborted) when
  // it is a newer generation of this job. Two live writers of the same job and generation belong to
  // two jobs that share a name, or are two ranks of one job. The process that is refused marks the
  // other writer's workspace as contested; from then on no process takes over from that writer
  // while it is alive. A link or a file with the name of a workspace is removed, but not the target
  // of the link. Error(kInvalid) for a workspace of a user who owns neither this process nor the
  // directory.
  // Requires: no component of `directory` is a symbolic link.
  WriterClaim(std::string directory, WriterId who, std::chrono::milliseconds timeout,
              FileSystem& files);
  // Leaves the contents of the workspace for the next writer to remove.
  ~WriterClaim() = default;
  WriterClaim(const WriterClaim&) = delete;
  WriterClaim& operator=(const WriterClaim&) = delete;

  const std::string& workspace() const { return workspace_; }

  // Error(kAborted), which names the successor, when another writer has taken over.
  void check_held() const;

 private:
  struct Owner;

  std::string folder_of(std::int64_t number) const;
  std::int64_t last_number() const;
  bool take_next(Deadline deadline);
  bool may_follow(std::int64_t last, Deadline deadline);
  bool is_workspace(const std::string& folder) const;
  void remove_leftovers(const std::string& folder);
  void remove_if_dead(const std::string& prepared);
  bool may_depose(const Owner& owner, const std::string& folder) const;
  [[noreturn]] void refuse(const Owner& owner, const std::string& folder);
  bool write_owner();
  bool publish(std::int64_t number);
  void take_away_others();

  const std::string directory_;
  const WriterId who_;
  FileSystem& files_;
  std::string workspace_;
  std::int64_t number_ = 0;
  Fd lock_;
};

}  // namespace paceline
