#pragma once

// Which process writes into a directory of checkpoints. Writers follow one another: each has a
// number and a workspace, and the highest number is the writer.
//
//   DIR/.writer-00000007/owner.json   names the writer, which holds its flock as long as it lives
//   DIR/.writer-00000007/...          what the writer is writing or removing
//
// A writer changes the checkpoints by nothing but renames out of its workspace and into it. Its
// successor takes the whole workspace away, after which each of these renames fails: a writer that
// was frozen anywhere on its way, and wakes up, can neither commit nor remove anything, because no
// moment lies between a check and a commit. The next number is taken by renaming a prepared
// workspace, which succeeds for one of those that try; none waits for a lock on the way.
//
// Thread safety: none; one thread at a time.

#include <chrono>
#include <cstdint>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/files/checkpoint/file_system.h"

namespace paceline {

// The job that a writer belongs to, and its generation.
struct WriterId {
  std::string job;  // the launcher's name for it; empty: not known
  int generation = 0;
};

class WriterClaim {
 public:
  // Follows a writer that has ended, and at once one that is an older generation of the same job,
  // whether it lives, is frozen or has vanished with its host. Any other one that lives is waited
  // for. At the deadline, Error(kInvalid) that names it; Error(kAborted) when it is a newer
  // generation of this job. Two live writers of the same job and generation
  // mean that two jobs share a name. The one that is refused marks the other's workspace as
  // contested; from then on no process takes over from that writer while it lives.
  // A link or a file that stands in a workspace's place is removed, whatever it points to stays; a
  // workspace of another user is Error(kInvalid). Requires: no component of `directory` is a
  // symbolic link.
  WriterClaim(std::string directory, WriterId who, std::chrono::milliseconds timeout,
              FileSystem& files);
  // What is in the workspace stays for the next writer to remove.
  ~WriterClaim() = default;
  WriterClaim(const WriterClaim&) = delete;
  WriterClaim& operator=(const WriterClaim&) = delete;

  const std::string& workspace() const { return workspace_; }

  // Error(kAborted) with the successor, when there is one.
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
