#pragma once

// A job's claim on the folder into which its launchers write, so that two jobs that run at the same
// time do not write into the same files. The launchers of one job, on whichever host, share it; it
// ends with the last of their processes, however that ends.
//
// A lock (flock) on the file ".paceline.lock" in the folder, which names the job; the last one that
// releases it removes it. On a file system without locks nothing is claimed and everybody is let
// in.

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

inline constexpr const char* kClaimFile = ".paceline.lock";

struct FolderClaim {
  Fd lock;              // keeps the claim; empty: there is none
  std::string holder;   // the job that has the folder instead
  std::string problem;  // why nothing can be written there
};

// For `job`, which all its launchers name alike, and no other job does. Waits at most a second, for
// others that are claiming it at this moment.
FolderClaim claim_folder(const std::string& folder, const std::string& job);
void release_folder(const std::string& folder, Fd lock);

// The temporary log folders of jobs that failed or were stopped are kept, to be looked at. Some
// time later nobody does.

// "paceline-20261231-235959-x7Fq2a".
bool is_temporary_log_folder(const std::string& name);

// The folder that they are in: TMPDIR, else /tmp.
std::string base_of_log_folders();

// This user's folders in `base` that no running job uses, those of the job that ended last first.
std::vector<std::string> kept_log_folders(const std::string& base = base_of_log_folders());

// Removes from `base` the temporary log folders of this user in which nothing was written for
// `age`, unless a job that runs has them. One in which lies anything that Paceline has not made
// stays whole.
void remove_old_log_folders(const std::string& base,
                            std::chrono::seconds age = std::chrono::hours(7 * 24));

// The folder with one complete log per rank, rank-000.log and so on. A folder the user named is
// made if needed and kept. Otherwise a private one in TMPDIR is used: kept when something went
// wrong, removed after success so that nothing litters; those that were kept are removed when a
// later job is started (old_log_folders.h).
//
// The log of a rank goes on through all generations of a job; each after the first begins with a
// line
// "=== paceline: generation 2 ===". Also when the rank was another node's before and both write to
// one folder: what that one wrote may hold the cause of its end. It goes on as well when SLURM has
// queued the job again (SLURM_RESTART_COUNT).
//
// A folder that the user named and that cannot be made or written is an error before the start. One
// that belongs to another job that runs (folder_claim.h) gets a folder inside, which is kept and
// reported. Without a temporary folder, training goes on without logs.

class LogDirectory {
 public:
  // `wanted` empty: a temporary one. `job` says whose logs these are: the agents of one job say
  // the same, on whichever host, and no others do. Error(kInvalid) for a `wanted` one that cannot
  // be used.
  LogDirectory(const std::string& wanted, const std::string& job);
  LogDirectory(const LogDirectory&) = delete;
  LogDirectory& operator=(const LogDirectory&) = delete;
  ~LogDirectory();

  // The log of `rank`: created for generation 0, continued for the others. Empty when it could
  // not be made.
  Fd open_log(int rank, int generation);
  std::string path_of(int rank) const;
  // Absolute, for ranks that change their folder and commands that run in another.
  const std::string& path() const { return path_; }
  // Why logs are missing; empty when they are not.
  const std::string& problem() const { return problem_; }
  // path(), but empty when logs are missing.
  std::string usable_path() const { return problem_.empty() ? path_ : ""; }
  // Why they are not where the user wanted them, and where they are; empty when they are there.
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
