#pragma once

// The timeline of the ranks that an agent starts: where they record it, and the trace that is made
// of it at the end of the job, however that came.

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "paceline/launcher/process/environment.h"

namespace paceline::launcher {

class JobTimeline {
 public:
  // `output`: the trace; empty: none is wanted. `directory`: for the ranks' files; empty: there is
  // none, which is reported at the end. `shared`: other hosts' ranks may also record there.
  JobTimeline(std::string output, std::string directory, bool shared);

  // What tells this rank of this generation where to record.
  void add_variables(Environment& environment, int rank, int generation);
  // Writes the trace and removes the ranks' files, which stay when that fails; a line for the user,
  // or "".
  std::string finish() const;
  // Of a job whose trace is made on another host: gives each of the ranks' files to `send`, packed,
  // and removes them; what the user should know of those that could not be, or "".
  std::string hand_over(const std::function<void(const std::string&)>& send) const;

 private:
  std::vector<std::string> own_files() const;

  const std::string output_;
  const std::string directory_;
  const bool shared_;
  std::set<std::string> own_names_;
};

}  // namespace paceline::launcher
