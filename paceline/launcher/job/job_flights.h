#pragma once

// The flight records of the ranks that an agent starts: where they are, what they say when the job
// goes wrong, and their end when it goes well.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/telemetry/step_log.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/process_end.h"

namespace paceline::launcher {

class JobFlights {
 public:
  // In the directory that the user named by PACELINE_FLIGHT_DIR, nowhere when that is empty,
  // otherwise in `log_directory`.
  JobFlights(const Environment& inherited, const std::string& log_directory);

  const std::string& directory() const { return directory_; }  // empty: nothing is recorded
  // What tells a rank where to record.
  void add_variables(Environment& environment) const;
  // Forgets what the ranks of an earlier generation did.
  void begin_generation();
  // Reads the records now, while the ranks are where they are. The first reading of a generation
  // counts. `ends` is asked afterwards for the ranks that have ended by then, so that it knows
  // each whose process was found gone; `culprit`: who failed first.
  void read(const std::function<std::vector<RankEnd>()>& ends,
            const std::optional<RankEnd>& culprit);
  // "rank 3 never entered ...", or a call that workers have been waiting for: the reason for the
  // end that read() found; "" when it found none. `waited_long`: a rank that waits is a reason only
  // after a second.
  std::string sentence(bool waited_long) const;
  // The same as the launcher's last words, with where the records are.
  std::string text(bool waited_long) const;
  // What made this rank fail, as it recorded it; "" when it did not.
  std::string failure_of(int rank) const;
  // Removes the records of these ranks.
  void remove(const std::vector<int>& ranks) const;
  // Training steps since the records were last removed, of the rank that made most; nothing when
  // none of them counts its steps (step_gauge.h).
  std::optional<StepReading> steps(const std::vector<int>& ranks) const;

 private:
  Explanation explain_operations(const std::function<std::vector<RankEnd>()>& ends) const;

  std::string directory_;
  bool was_read_ = false;
  bool tells_ = false;  // a reason
  double waited_seconds_ = 0;
  bool is_wait_ = false;  // the reason is that ranks wait
  std::string sentence_;
};

}  // namespace paceline::launcher
