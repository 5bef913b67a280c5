#pragma once

// The folder with one complete log for each rank; the claim on it, so that two jobs that run at the
// same time do not write into the same files; and the removal of temporary folders that are old.

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

inline constexpr const char* kClaimFile = ".paceline.lock";

// A job's claim on a folder: a lock (flock) on the file ".paceline.lock" in it, which names the
// job. The launchers of one job, on whichever host, share the lock, and the claim ends with the
// last of their processes, however that ends; the last one that releases it removes the file. On a
// file system without locks no claim is made and every job may write.
struct FolderClaim {
  Fd lock;              // keeps the claim; empty: there is none
  std::string holder;   // the other job that has the folder
  std::string problem;  // why nothing can be written there
};

// Claims it for `job`: all launchers of a job give the same name, and no other job does. Waits at
// most a second for others that are claiming it at this moment.
FolderClaim claim_folder(const std::string& folder, const std::string& job);
void release_folder(const std::string& folder, Fd lock);

// Whether it is the name of a folder for a job without --log-dir:
// "paceline-20261231-235959-x7Fq2a".
bool is_temporary_log_folder(const std::string& name);

// The folder that holds them: TMPDIR, else /tmp.
std::string base_of_log_folders();

// This user's temporary log folders in `base` that no running job uses, the newest first.
std::vector<std::string> kept_log_folders(const std::string& base = base_of_log_folders());

// Removes from `base` the temporary log folders of this user in which nothing was written for
// `age`, unless a running job has them. A folder that holds anything that Paceline has not made
// stays whole.
void remove_old_log_folders(const std::string& base,
                            std::chrono::seconds age = std::chrono::hours(7 * 24));

// The folder with one complete log for each rank: rank-000.log and so on.
//
//   1. A folder that the user named is made if needed, and kept. If it cannot be made or written,
//      the job does not start. If another running job has claimed it, a new folder inside it is
//      used, kept and reported.
//   2. Otherwise a private folder in TMPDIR is used: removed after success, kept when something
//      went wrong, and then removed when a job starts a week later. Without such a folder, training
//      goes on without logs.
//   3. The log of a rank goes on through all generations of a job; each one after the first begins
//      with a line "=== paceline: generation 2 ===". That holds also when the rank was another
//      node's before and both write to one folder, because the cause of that one's end may stand in
//      it, and when SLURM has queued the job again (SLURM_RESTART_COUNT).
class LogDirectory {
 public:
  // `wanted` empty: a temporary folder. `job` names the owner, as claim_folder() has it.
  // Error(kInvalid) for a `wanted` folder that cannot be used.
  LogDirectory(const std::string& wanted, const std::string& job);
  LogDirectory(const LogDirectory&) = delete;
  LogDirectory& operator=(const LogDirectory&) = delete;
  ~LogDirectory();

  // The log of `rank`: created for generation 0, continued for the others. Empty when it could
  // not be made.
  Fd open_log(int rank, int generation);
  std::string path_of(int rank) const;
  // Absolute, for ranks that change their folder and for commands that run in another.
  const std::string& path() const { return path_; }
  // Why logs are missing; empty when they are not.
  const std::string& problem() const { return problem_; }
  // path(), but empty when logs are missing.
  std::string usable_path() const { return problem_.empty() ? path_ : ""; }
  // Why the logs are not where the user wanted them, and where they are; empty when they are there.
  const std::string& notice() const { return notice_; }
  // Removes a temporary folder with the logs it made.
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
