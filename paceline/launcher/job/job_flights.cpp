#include "paceline/launcher/job/job_flights.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/telemetry/call_gauge_file.h"
#include "paceline/launcher/diagnosis/call_waits.h"

namespace paceline::launcher {
namespace {

constexpr const char* kVariable = "PACELINE_FLIGHT_DIR";
// In seconds. In a job that was stopped, a shorter wait is not worth reporting.
constexpr double kLongWait = 1;

bool is_wait(Verdict verdict) {
  return verdict == Verdict::kNeverEntered || verdict == Verdict::kStuck ||
         verdict == Verdict::kMessage || verdict == Verdict::kUndecided;
}

// The exit code of the process that recorded the flight; nullopt if it is not known, for instance
// for a program that a shell script started: the agent sees only the end of the script.
std::optional<int> exit_code_of(const Flight& flight, const std::vector<RankEnd>& ends) {
  const auto end = std::find_if(ends.begin(), ends.end(), [&](const RankEnd& one) {
    return one.rank == flight.rank && one.pid == flight.pid;
  });
  if (end == ends.end() || end->signal != 0) return {};
  return end->exit_code;
}

// Whether the explanation cannot be the reason for the culprit's failure: it is not about ranks
// that wait for each other, and it does not name the culprit.
bool contradicts(const Explanation& explanation, const RankEnd& culprit) {
  return explanation.group.empty() && explanation.verdict != Verdict::kMessage &&
         std::find(explanation.ranks.begin(), explanation.ranks.end(), culprit.rank) ==
             explanation.ranks.end();
}

}  // namespace

JobFlights::JobFlights(const Environment& inherited, const std::string& log_directory)
    : directory_(log_directory) {
  const auto named = inherited.find(kVariable);
  if (named == inherited.end()) return;
  directory_ = named->second;
  // Makes the path absolute, because ranks may change their folder and the user may run commands in
  // another folder.
  if (!directory_.empty()) directory_ = std::filesystem::absolute(directory_);
}

void JobFlights::add_variables(Environment& environment) const {
  environment[kVariable] = directory_;
  environment["PACELINE_FLIGHT_KEEP"] = "1";
}

void JobFlights::begin_generation() {
  was_read_ = has_reason_ = is_wait_ = false;
  waited_seconds_ = 0;
}

void JobFlights::read(const std::function<std::vector<RankEnd>()>& ends,
                      const std::optional<RankEnd>& culprit) {
  if (was_read_ || directory_.empty()) return;
  was_read_ = true;
  const Explanation operations = explain_operations(ends);
  has_reason_ =
      operations.verdict != Verdict::kNothing && operations.verdict != Verdict::kFinished &&
      operations.verdict != Verdict::kStraggler && !(culprit && contradicts(operations, *culprit));
  is_wait_ = is_wait(operations.verdict);
  const auto waits = call_waits(read_call_gauges(directory_));
  if (!has_reason_ && !culprit && !waits.empty()) has_reason_ = is_wait_ = true;
  const Explanation explanation = with_calls(operations, waits);
  waited_seconds_ = explanation.waited_seconds;
  sentence_ = explanation.sentence;
}

Explanation JobFlights::explain_operations(
    const std::function<std::vector<RankEnd>()>& ends) const {
  try {
    std::vector<Flight> flights = read_flights(directory_).flights;
    const std::vector<RankEnd> ended = ends();
    for (Flight& flight : flights) flight.exit_code = exit_code_of(flight, ended);
    return explain(flights);
  } catch (const Error&) {
    return {};  // a program that creates no group leaves no records
  }
}

std::string JobFlights::sentence(bool waited_long) const {
  const bool short_wait = waited_long && is_wait_ && waited_seconds_ < kLongWait;
  return has_reason_ && !short_wait ? sentence_ : "";
}

std::string JobFlights::text(bool waited_long) const {
  const std::string reason = sentence(waited_long);
  if (reason.empty()) return "";
  return fmt::format("paceline: {}\n  flight records: {} (paceline explain {})\n", reason,
                     directory_, shell_quoted(directory_));
}

std::optional<StepReading> JobFlights::steps(const std::vector<int>& ranks) const {
  std::optional<StepReading> most;
  if (directory_.empty()) return most;
  for (const int rank : ranks) {
    const auto reading = read_step_gauge(directory_ + "/" + step_gauge_name(rank));
    if (reading && (!most || reading->steps > most->steps)) most = reading;
  }
  return most;
}

std::string JobFlights::failure_of(int rank) const {
  if (directory_.empty()) return "";
  try {
    for (const Flight& flight : read_flights(directory_).flights) {
      if (flight.rank == rank) return flight.failure;
    }
  } catch (const Error&) {
    // A program that creates no group leaves no records.
  }
  return "";
}

void JobFlights::remove(const std::vector<int>& ranks) const {
  if (directory_.empty()) return;
  for (const int rank : ranks) {
    for (const std::string& name :
         {flight_file_name(rank), step_gauge_name(rank), call_gauge_name(rank)}) {
      unlink((directory_ + "/" + name).c_str());
    }
  }
}

}  // namespace paceline::launcher
