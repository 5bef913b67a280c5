#include "paceline/launch/job_flights.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/collectives/flight/explain.h"

namespace paceline::launch {
namespace {

constexpr const char* kVariable = "PACELINE_FLIGHT_DIR";
// A rank that comes this much later than the others is nothing to report of a job that was stopped.
constexpr double kLongWait = 1;

bool is_wait(Verdict verdict) {
  return verdict == Verdict::kNeverEntered || verdict == Verdict::kStuck ||
         verdict == Verdict::kMessage || verdict == Verdict::kUndecided;
}

}  // namespace

JobFlights::JobFlights(const Environment& inherited, const std::string& log_directory)
    : directory_(log_directory) {
  const auto named = inherited.find(kVariable);
  if (named == inherited.end()) return;
  directory_ = named->second;
  // For ranks that change their folder, and commands that run in another.
  if (!directory_.empty()) directory_ = std::filesystem::absolute(directory_);
}

void JobFlights::add_variables(Environment& environment) const {
  environment[kVariable] = directory_;
  environment["PACELINE_FLIGHT_KEEP"] = "1";
}

void JobFlights::begin_generation() {
  was_read_ = tells_ = is_wait_ = false;
  waited_seconds_ = 0;
}

void JobFlights::read() {
  if (was_read_ || directory_.empty()) return;
  was_read_ = true;
  try {
    const Explanation explanation = explain(read_flights(directory_).flights);
    tells_ = explanation.verdict != Verdict::kNothing &&
             explanation.verdict != Verdict::kFinished &&
             explanation.verdict != Verdict::kStraggler;
    is_wait_ = is_wait(explanation.verdict);
    waited_seconds_ = explanation.waited_seconds;
    sentence_ = explanation.sentence;
  } catch (const Error&) {
    // A program that makes no group leaves no records.
  }
}

std::string JobFlights::sentence(bool waited_long) const {
  const bool short_wait = waited_long && is_wait_ && waited_seconds_ < kLongWait;
  return tells_ && !short_wait ? sentence_ : "";
}

std::string JobFlights::text(bool waited_long) const {
  const std::string reason = sentence(waited_long);
  if (reason.empty()) return "";
  return fmt::format("paceline: {}\n  flight records: {} (paceline explain {})\n", reason,
                     directory_, directory_);
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

void JobFlights::remove(const std::vector<int>& ranks) const {
  if (directory_.empty()) return;
  for (const int rank : ranks) {
    for (const std::string& name : {flight_file_name(rank), step_gauge_name(rank)}) {
      unlink((directory_ + "/" + name).c_str());
    }
  }
}

}  // namespace paceline::launch
