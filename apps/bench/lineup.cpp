#include "apps/bench/lineup.h"

#include <chrono>
#include <cstdlib>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/counted.h"

#include "apps/bench/own_variables.h"

namespace paceline::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kMeetingLimit = 60s;
// A contestant whose ranks compute so much while others are on turn, as a part of a core, is worth
// a note; shorter waits tell nothing.
constexpr double kRestless = 0.05;
constexpr double kShortWait = 0.1;

}  // namespace

ReportHead begin_report(const std::string& command, const std::string& version,
                        const launcher::Environment& variables) {
  ReportHead report;
  report.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  report.machine = this_machine();
  report.command = command;
  report.version = version;
  report.variables = describe(own_variables(launcher::inherited_environment(), variables));
  return report;
}

std::optional<Located> locate_or_note(const CatalogEntry& entry, const std::string& programs,
                                      ReportHead& report) {
  const char* path = std::getenv("PATH");
  Located located = locate(entry, programs, path != nullptr ? path : "");
  if (located.missing.empty()) return located;
  if (entry.name == "paceline") fail(ErrorCode::kSystem, "{}", located.missing);
  report.missing.push_back(located.missing);
  return {};
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

std::string interruption_note(std::size_t done, std::size_t wanted) {
  return fmt::format("interrupted: {} of {} measured", done, counted(wanted, "point"));
}

std::string failure_note(std::size_t done, std::size_t wanted, const Error& error) {
  return fmt::format("ended after {} of {} by: {}", done, counted(wanted, "point"), error.what());
}

void note_restlessness(const RankSet& set, ReportHead& report) {
  if (set.idle_seconds() < kShortWait || set.idle_cpu_seconds() < kRestless * set.idle_seconds())
    return;
  report.note_once(
      fmt::format("{} computes during the turns of others, which slows them down: its times and "
                  "theirs are less reliable",
                  set.title()));
}

}  // namespace paceline::bench
