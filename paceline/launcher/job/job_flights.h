#pragma once

// The flight records and step gauges of the ranks that an agent starts: their folder, the
// explanation that they give when the job fails, and their removal when it succeeds.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/telemetry/step_gauge.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

class JobFlights {
 public:
  // The ranks record in the directory that the user set in PACELINE_FLIGHT_DIR, and nowhere if that
  // variable is empty. If it is not set, they record in `log_directory`.
  JobFlights(const Environment& inherited, const std::string& log_directory);

  const std::string& directory() const { return directory_; }  // empty: nothing is recorded
  // Sets the variables that tell a rank where to record.
  void add_variables(Environment& environment) const;
  // Forgets the result of read() in an earlier generation.
  void begin_generation();
  // Reads the records now, before the ranks leave the operations that they are in. Later calls in a
  // generation do nothing. Calls `ends`, which returns the ranks that have ended, only after
  // it has read the records: so if the reading finds that the process of a rank no longer exists,
  // that rank is among the ranks that `ends` returns. `culprit`: the rank that failed first.
  void read(const std::function<std::vector<RankEnd>()>& ends,
            const std::optional<RankEnd>& culprit);
  // The reason that read() found for the end of the generation: "rank 3 never entered ...", or a
  // call for which workers have been waiting; "" if read() found none. With `waited_long`, a wait
  // of less than a second is not a reason.
  std::string sentence(bool waited_long) const;
  // sentence() as the text that the launcher prints last, with the folder of the records.
  std::string text(bool waited_long) const;
  // The error with which this rank failed, from its flight record; "" if it recorded none.
  std::string failure_of(int rank) const;
  // Removes the records of these ranks.
  void remove(const std::vector<int>& ranks) const;
  // The step gauge of the rank that has made the most steps among these ranks since the records
  // were last removed; nullopt if no rank counts its steps (engine/telemetry/step_gauge.h).
  std::optional<StepReading> steps(const std::vector<int>& ranks) const;

 private:
  Explanation explain_operations(const std::function<std::vector<RankEnd>()>& ends) const;

  std::string directory_;
  bool was_read_ = false;
  bool has_reason_ = false;  // the records show a reason
  double waited_seconds_ = 0;
  bool is_wait_ = false;  // the reason is that ranks wait
  std::string sentence_;
};

}  // namespace paceline::launcher
