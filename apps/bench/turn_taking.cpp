#include "apps/bench/turn_taking.h"

#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "paceline/engine/core/check.h"

namespace paceline::bench {

namespace {

using namespace std::chrono_literals;

constexpr auto kMeetingLimit = 60s;
// A note is made about a contestant whose ranks use at least kRestless of one core during the turns
// of others. Total waits shorter than kShortWait seconds are too short to judge.
constexpr double kRestless = 0.05;
constexpr double kShortWait = 0.1;

}  // namespace

ReportHead begin_report(const TurnOptions& options) {
  ReportHead report;
  report.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  report.machine = this_machine();
  report.command = options.command;
  report.version = options.version;
  report.variables = variables_in_effect(launcher::inherited_environment(), options.variables);
  report.notes = options.notes;
  return report;
}

void find_contestants(
    const TurnOptions& options, Subject subject, ReportHead& report,
    const std::function<void(const CatalogEntry& entry, const Located& located)>& add) {
  std::vector<std::string> names = {"paceline"};
  names.insert(names.end(), options.peers.begin(), options.peers.end());
  for (const std::string& name : names) {
    const CatalogEntry* entry = find_entry(name, subject);
    check(entry != nullptr, "no contestant is called {}", name);
    const Located located = locate(*entry, options.programs);
    if (located.missing.empty()) {
      add(*entry, located);
      continue;
    }
    if (name == "paceline") fail(ErrorCode::kSystem, "{}", located.missing);
    report.missing.push_back(located.missing);
  }
}

void start_all(std::vector<std::unique_ptr<RankSet>>& sets, ReportHead& report) {
  for (const auto& set : sets) set->start();
  for (const auto& set : sets) set->open_store();
  for (auto& set : sets) {
    try {
      set->meet(Deadline::after(kMeetingLimit));
      report.participants.push_back({set->name(), set->title(), set->library().version});
    } catch (const Error& error) {
      if (set->name() == "paceline") throw;
      report.missing.push_back(fmt::format("{} did not start: {}", set->title(), error.what()));
      set.reset();
    }
  }
  std::erase(sets, nullptr);
}

void note_turn(Entrant& entrant, const std::string& lacks, ReportHead& report) {
  const RankSet& set = *entrant.set;
  if (!lacks.empty()) {
    entrant.takes_part = false;
    return report.note_once(fmt::format("{} {}", set.title(), lacks));
  }
  if (set.idle_seconds() < kShortWait || set.idle_cpu_seconds() < kRestless * set.idle_seconds())
    return;
  report.note_once(
      fmt::format("{} computes during the turns of others and slows them down: all times in this "
                  "report are less reliable",
                  set.title()));
}

void leave_out(Entrant& entrant, const std::string& point, const Error& error, ReportHead& report) {
  if (entrant.set->name() == "paceline") throw;
  report.notes.push_back(
      fmt::format("{} is left out from {} on: {}", entrant.set->title(), point, error.what()));
  entrant.set = nullptr;
  entrant.takes_part = false;
}

void note_end(std::size_t done, std::size_t wanted, const Error* error, ReportHead& report) {
  const std::string points = fmt::format("{} of {}", done, counted(wanted, "point"));
  report.notes.push_back(error == nullptr ? fmt::format("interrupted: {} measured", points)
                                          : fmt::format("stopped after {} because of an error: {}",
                                                        points, error->what()));
}

}  // namespace paceline::bench
