#pragma once

// The flight records and step gauges of the ranks that an agent starts: their folder, what they
// tell when the job goes wrong, and their removal when it goes well.

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
  // Records in the directory that the user named by PACELINE_FLIGHT_DIR, nowhere when that is
  // empty, otherwise in `log_directory`.
  JobFlights(const Environment& inherited, const std::string& log_directory);

  const std::string& directory() const { return directory_; }  // empty: nothing is recorded
  // Sets the variables that tell a rank where to record.
  void add_variables(Environment& environment) const;
  // Forgets the reading of an earlier generation.
  void begin_generation();
  // Reads the records now, before the ranks leave the operations that they are in. Only the first
  // call in a generation does so. Calls `ends` after the reading for the ranks that have ended, so
  // that it knows every rank whose process was found gone. `culprit`: the rank that failed first.
  void read(const std::function<std::vector<RankEnd>()>& ends,
            const std::optional<RankEnd>& culprit);
  // The reason for the end that read() found: "rank 3 never entered ...", or a call for which
  // workers have been waiting; "" when it found none. `waited_long`: a rank that waits is a reason
  // only after a second.
  std::string sentence(bool waited_long) const;
  // The same as the launcher's last words, with the folder of the records.
  std::string text(bool waited_long) const;
  // Why this rank failed, as it recorded it; "" when it recorded nothing.
  std::string failure_of(int rank) const;
  // Removes the records of these ranks.
  void remove(const std::vector<int>& ranks) const;
  // The steps that one of these ranks has made since the records were last removed: of the rank
  // that made most; nothing when no rank counts its steps (engine/telemetry/step_log.h).
  std::optional<StepReading> steps(const std::vector<int>& ranks) const;

 private:
  Explanation explain_operations(const std::function<std::vector<RankEnd>()>& ends) const;

  std::string directory_;
  bool was_read_ = false;
  bool tells_ = false;  // the records show a reason
  double waited_seconds_ = 0;
  bool is_wait_ = false;  // and the reason is that ranks wait
  std::string sentence_;
};

}  // namespace paceline::launcher
