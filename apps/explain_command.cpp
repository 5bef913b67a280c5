// `paceline explain [DIR]`: reads the flight records of a job's ranks and summarises them in one
// sentence.

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/launcher/diagnosis/call_waits.h"
#include "paceline/launcher/output/log_directory.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kStates[] = {"", "entered", "started", "done", "failed"};
constexpr const char* kProcesses[] = {"unknown", "running", "stopped", "gone"};
constexpr const char* kEnds[] = {"open", "in_order", "failed", "exception"};

Json json_of(const FlightOperation& operation, const Flight& flight) {
  Json json;
  json["id"] = operation.id;
  json["op"] = name_of(static_cast<Op>(operation.call.op));
  json["sequence"] = operation.sequence;
  for (const FlightGroup& group : flight.groups) {
    if (group.number == operation.call.group) json["group"] = group.name;
  }
  json["dtype"] = name_of(operation.call.dtype);
  json["count"] = operation.call.count;
  json["reduce_op"] = name_of(static_cast<ReduceOp>(operation.call.reduce_op));
  json["peer"] = operation.call.peer;
  json["tag"] = operation.call.tag;
  json["asynchronous"] = operation.call.asynchronous;
  json["state"] = kStates[static_cast<int>(operation.state)];
  if (operation.error) json["error"] = to_string(*operation.error);
  json["thread"] = operation.thread;
  json["entered_ns"] = operation.entered;
  json["started_ns"] = operation.started;
  json["ended_ns"] = operation.ended;
  json["entered_wall_ns"] = operation.entered_wall;
  return json;
}

Json json_of(const Flight& flight) {
  Json json;
  json["rank"] = flight.rank;
  json["host"] = flight.host;
  json["pid"] = flight.pid;
  json["process"] = kProcesses[static_cast<int>(flight.process)];
  json["end"] = kEnds[static_cast<int>(flight.end)];
  json["failure"] = flight.failure;
  json["begun"] = flight.num_begun;
  json["dropped"] = flight.num_dropped;
  json["torn"] = flight.num_torn;
  json["operations"] = Json::array();
  for (const auto& operation : flight.operations) {
    json["operations"].push_back(json_of(operation, flight));
  }
  return json;
}

// The records of a job in a directory.
struct Records {
  FlightDirectory flights;
  std::vector<launcher::CallWait> waits;
  bool has_calls = false;

  bool empty() const { return flights.flights.empty() && !has_calls; }
};

// Reads flight records and call gauges. A job of workers without a group leaves no flight records.
Records read_records(const std::string& directory) {
  const auto calls = read_call_gauges(directory);
  Records records{.waits = launcher::call_waits(calls), .has_calls = !calls.empty()};
  try {
    records.flights = read_flights(directory);
  } catch (const Error& error) {
    if (!records.has_calls || error.code() != ErrorCode::kInvalid) throw;
  }
  return records;
}

Explanation explain_records(const Records& records, const std::string& directory) {
  const FlightDirectory& found = records.flights;
  Explanation explanation = explain(found.flights);
  if (found.flights.empty() && !found.problems.empty()) {
    explanation.sentence = fmt::format("no readable record in {}: {}", directory,
                                       counted(found.problems.size(), "damaged or foreign file"));
  }
  if (found.flights.empty() && records.has_calls) {
    explanation.sentence = "no worker has been waiting for a call";
  }
  return launcher::with_calls(std::move(explanation), records.waits);
}

Json json_of(const launcher::CallWait& wait) {
  Json json;
  json["caller"] = wait.caller;
  json["caller_rank"] = wait.caller_rank;
  json["callee"] = wait.callee;
  json["callee_rank"] = wait.callee_rank ? Json(*wait.callee_rank) : Json();
  json["method"] = wait.method;
  json["seconds"] = wait.seconds;
  json["state"] = launcher::name_of(wait.state);
  json["state_seconds"] = wait.state_seconds;
  return json;
}

std::string json_of_all(const Records& records, const Explanation& explanation) {
  const FlightDirectory& found = records.flights;
  Json json;
  json["verdict"] = name_of(explanation.verdict);
  json["sentence"] = explanation.sentence;
  json["ranks"] = explanation.ranks;
  json["group"] = explanation.group;
  json["sequence"] = explanation.sequence;
  json["waited_seconds"] = explanation.waited_seconds;
  json["problems"] = found.problems;
  json["calls"] = Json::array();
  for (const launcher::CallWait& wait : records.waits) json["calls"].push_back(json_of(wait));
  json["flights"] = Json::array();
  for (const Flight& flight : found.flights) json["flights"].push_back(json_of(flight));
  return json_text(json, 2) + "\n";
}

std::string plain_text(const Records& records, const Explanation& explanation) {
  const FlightDirectory& found = records.flights;
  std::string text = explanation.sentence + "\n\n";
  for (const Flight& flight : found.flights) text += "  " + describe_rank(flight) + "\n";
  for (const launcher::CallWait& wait : records.waits) text += "  " + wait.sentence + "\n";
  for (const std::string& problem : found.problems) text += "  left out: " + problem + "\n";
  return text;
}

bool has_records(const std::string& directory) {
  try {
    read_records(directory);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The newest temporary log folder in which a failed or stopped job left records.
std::string directory_of_last_failure() {
  const auto folders = launcher::kept_log_folders();
  const auto last = std::find_if(folders.begin(), folders.end(), has_records);
  if (last == folders.end()) {
    throw UsageError(fmt::format(
        "no job that failed or was stopped left records in {}; give the directory of its --log-dir",
        launcher::base_of_log_folders()));
  }
  say(fmt::format("paceline explain: the last job that failed or was stopped, in {}", *last));
  return *last;
}

}  // namespace

int explain_command(const Arguments& arguments) {
  CLI::App app(
      "Reports in one sentence what the ranks of a job did last: which rank is missing, died or "
      "called a different operation, or which call a worker has been waiting for. DIR contains "
      "their flight records, rank-000.flight and so on. Without DIR: those of the last job without "
      "a --log-dir that failed or was stopped.",
      "paceline explain");
  bool json = false;
  OptionTable table(app, /*has_variables=*/false);
  table.word("DIR", "The directory with the records [that of the last job that failed]");
  table.flag("--json", "One JSON object with every record", bool_target(json));
  app.footer(
      "\nFor a running job, reports where its ranks are now. Files of several machines can be "
      "copied into one directory.\n\nExamples:\n  paceline explain\n  paceline explain logs\n  "
      "paceline explain --json logs | jq .verdict");
  const auto words = table.read_line(arguments, 1);
  if (!words) return 0;
  const std::string directory = words->empty() ? directory_of_last_failure() : words->front();
  const Records records = read_records(directory);
  const Explanation explanation = explain_records(records, directory);
  fmt::print("{}", json ? json_of_all(records, explanation) : plain_text(records, explanation));
  return records.empty() ? kExitEnvironment : 0;
}

}  // namespace paceline::apps
