#pragma once

// The flight records of the ranks that an agent starts: where they are, what they say when the job
// goes wrong, and their end when it goes well.

#include <string>
#include <vector>

#include "paceline/launch/worker_environment.h"

namespace paceline::launch {

class JobFlights {
 public:
  // In the directory that the user named by PACELINE_FLIGHT_DIR, nowhere when that is empty,
  // otherwise in `log_directory`.
  JobFlights(const Environment& inherited, const std::string& log_directory);

  // What tells a rank where to record.
  void add_variables(Environment& environment) const;
  // Reads the records now, while the ranks are where they are. The first reading counts.
  void read();
  // "paceline: rank 3 never entered ...", and where the records are; "" when read() found no reason
  // for the job's end in them. `waited_long`: a rank that waits is a reason only after a second.
  std::string text(bool waited_long) const;
  // Removes the records of these ranks.
  void remove(const std::vector<int>& ranks) const;

 private:
  std::string directory_;
  bool was_read_ = false;
  bool tells_ = false;  // a reason
  double waited_seconds_ = 0;
  bool is_wait_ = false;  // the reason is that somebody waits
  std::string sentence_;
};

}  // namespace paceline::launch
