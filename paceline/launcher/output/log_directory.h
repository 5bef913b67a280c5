#pragma once

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

#include <set>
#include <string>

#include "paceline/engine/core/fd.h"

namespace paceline::launcher {

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
