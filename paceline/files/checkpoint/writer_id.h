#pragma once

// The job that writes a directory of checkpoints.
//
// Thread safety: a value.

#include <string>

namespace paceline {

// The job that a writer belongs to, and its generation.
struct WriterId {
  std::string job;  // the launcher's name for the job; empty: not known
  int generation = 0;
};

}  // namespace paceline
