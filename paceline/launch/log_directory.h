#pragma once

// The folder with one complete log per rank, rank-000.log and so on. A folder the user named is
// made if needed and kept. Otherwise a private one in TMPDIR is used: kept when something went
// wrong, removed after success so that nothing litters.
//
// Logs are a help, not a condition: a folder that cannot be written costs one warning, and training
// goes on.

#include <string>
#include <vector>

#include "paceline/core/fd.h"

namespace paceline::launch {

class LogDirectory {
 public:
  // `wanted` empty: a temporary one.
  explicit LogDirectory(const std::string& wanted);

  // The log of `rank`, empty when it could not be made.
  Fd open_log(int rank);
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
  std::vector<std::string> made_;
};

}  // namespace paceline::launch
