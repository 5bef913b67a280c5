#pragma once

// The folder with one complete log per rank, rank-000.log and so on. A folder the user named is
// made if needed and kept. Otherwise a private one in TMPDIR is used: kept when something went
// wrong, removed after success so that nothing litters.
//
// The log of a rank goes on through all generations of a job; each after the first begins with a
// line
// "=== paceline: generation 2 ===". Also when the rank was another node's before and both write to
// one folder: what that one wrote may hold the cause of its end.
//
// Logs are a help, not a condition: a folder that cannot be written costs one warning, and training
// goes on.

#include <set>
#include <string>

#include "paceline/core/fd.h"

namespace paceline::launch {

class LogDirectory {
 public:
  // `wanted` empty: a temporary one.
  explicit LogDirectory(const std::string& wanted);

  // The log of `rank`: made anew for generation 0, gone on with for the others. Empty when it could
  // not be made.
  Fd open_log(int rank, int generation);
  std::string path_of(int rank) const;
  const std::string& path() const { return path_; }
  // Why logs are missing; empty when they are not.
  const std::string& problem() const { return problem_; }
  // Removes a temporary folder with the logs it made.
  void remove_if_temporary();

 private:
  std::string path_;
  bool temporary_ = false;
  std::string problem_;
  std::set<std::string> made_;
};

}  // namespace paceline::launch
