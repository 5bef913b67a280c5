#pragma once

// `paceline advise --mesh` and `--memory` make plans from a profile that the program writes itself
// (planning/forecast/job_profile.h), for the ranks of this machine or for machines that are
// described in words.

#include <string>
#include <vector>

namespace paceline::apps {

struct MeshAdviceOptions {
  bool plans_meshes = false;  // --mesh
  bool memory = false;        // --memory
  std::string simulate;       // a description of machines; empty: this machine
  long ranks = 0;             // on this machine; 0: one for each core
  long global_batch = 0;      // 0: the program's own
  long rows = 8;
  // The plans to try out: their number, or their meshes, separated by blanks; empty: none.
  std::string check;
  std::string profile;  // a file that is read if it exists, and written otherwise; empty: none
  long seconds = 5, patience = 60;

  bool is_asked_for() const { return plans_meshes || memory; }
};

// Returns the exit code. Throws UsageError for options that cannot be combined, Interrupted when a
// signal arrives, and Error if the program writes no profile.
int advise_mesh(const MeshAdviceOptions& options, const std::vector<std::string>& program);

}  // namespace paceline::apps
