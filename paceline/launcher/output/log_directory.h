#pragma once

// The folder with one complete log for each rank; a claim on it, which keeps two jobs from writing
// to the same files at the same time; and the removal of old temporary folders.

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

inline constexpr const char* kClaimFile = ".paceline.lock";

// A job's claim on a folder: a lock (flock) on the file ".paceline.lock" in it, which names the
// job. The launchers of one job, on any host, share the lock. The claim ends when the last of their
// processes ends, for whatever reason; the last launcher that releases the claim removes the file.
// On a file system without locks no claim is made, and every job may write.
struct FolderClaim {
  Fd lock;              // keeps the claim while it is open; empty: no claim
  std::string holder;   // the other job that has claimed the folder
  std::string problem;  // why the folder cannot be written
};

// Claims the folder for `job`, a name that all launchers of the job pass and no other job has.
// Waits at most a second for other launchers that are claiming it at the same moment.
FolderClaim claim_folder(const std::string& folder, const std::string& job);
void release_folder(const std::string& folder, Fd lock);

// Whether `name` is that of a temporary folder, used by a job without --log-dir:
// "paceline-20261231-235959-x7Fq2a".
bool is_temporary_log_folder(const std::string& name);

// The folder that contains the temporary log folders: TMPDIR, else /tmp.
std::string base_of_log_folders();

// This user's temporary log folders in `base` that no running job uses, the newest first.
std::vector<std::string> kept_log_folders(const std::string& base = base_of_log_folders());

// Removes from `base` this user's temporary log folders whose files have not been written for
// `age`, unless a running job has claimed them. Does not touch a folder that contains anything that
// Paceline did not make.
void remove_old_log_folders(const std::string& base,
                            std::chrono::seconds age = std::chrono::hours(7 * 24));

// The folder with one complete log for each rank: rank-000.log and so on.
//
//   1. A folder that the user named is created if needed, and kept. If it cannot be made or
//      written, the job does not start. If another running job has claimed it, a new folder inside
//      it is used, kept and reported.
//   2. If the user named no folder, a private folder in TMPDIR is used. It is removed after
//      success, and kept if anything went wrong; a kept folder is removed by the first job without
//      --log-dir that starts at least a week after the folder was last written. If no private
//      folder can be created, training runs without logs.
//   3. The log of a rank continues through all generations of a job; each generation after the
//      first begins with a line "=== paceline: generation 2 ===". If the rank was on another node
//      before and both nodes write to one folder, the log is also continued, because it may contain
//      the cause of the earlier failure. It is also continued if SLURM has queued the job again
//      (SLURM_RESTART_COUNT).
class LogDirectory {
 public:
  // `wanted` empty: a temporary folder. `job`: the name for claim_folder(). Error(kInvalid) for a
  // `wanted` folder that cannot be used.
  LogDirectory(const std::string& wanted, const std::string& job);
  LogDirectory(const LogDirectory&) = delete;
  LogDirectory& operator=(const LogDirectory&) = delete;
  ~LogDirectory();

  // Opens the log of `rank`, which continues as rule 3 says; otherwise an older log is emptied.
  // Returns an empty Fd when the log cannot be created.
  Fd open_log(int rank, int generation);
  std::string path_of(int rank) const;
  // The absolute path, because ranks may change their folder and commands may run in another one.
  const std::string& path() const { return path_; }
  // Why logs are missing; empty if none is missing.
  const std::string& problem() const { return problem_; }
  // path(), or "" if logs are missing.
  std::string usable_path() const { return problem_.empty() ? path_ : ""; }
  // Why the logs are not in the folder that the user named, and where they are; empty if they are
  // in that folder.
  const std::string& notice() const { return notice_; }
  // Removes the folder, if it is a temporary one, with the logs that this object created.
  void remove_if_temporary();

 private:
  void use(const std::string& wanted, const std::string& job);
  void use_new(const std::string& base, const std::string& job);
  void use_one_inside(const std::string& job, const std::string& holder);

  std::string path_;
  bool temporary_ = false;
  Fd claim_;
  std::string problem_, notice_;
  std::set<std::string> made_;
};

}  // namespace paceline::launcher
