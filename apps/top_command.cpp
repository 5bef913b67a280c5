// paceline top: a job's ranks as a table that is drawn again and again; once where the output is no
// terminal.

#include <cmath>
#include <csignal>
#include <ctime>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "paceline/core/error.h"
#include "paceline/launch/job_socket.h"
#include "paceline/launch/memory_counters.h"
#include "paceline/launch/process.h"

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/rank_meter.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongestAnswer = 5s;
constexpr double kShortestInterval = 0.1, kLongestInterval = 3600;
constexpr const char* kClear = "\x1b[H\x1b[J";

std::string or_dash(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string table_of(const JobEntry& job, const std::vector<RankFigures>& ranks) {
  std::string text = fmt::format(
      "{}  {}  {} rank{}, runs for {}\n\n", job.id, short_command(job, 48), job.world_size,
      job.world_size == 1 ? "" : "s", age_text(std::time(nullptr) - job.started));
  text += fmt::format("{:>5} {:>8} {:<8} {:>5} {:>9} {:>9} {:>10} {:>7} {:>5}  {}\n", "RANK", "PID",
                      "STATE", "CPU", "MEMORY", "STEP", "SAMPLES/S", "OPS/S", "WAIT", "WHERE");
  for (const RankFigures& rank : ranks) {
    text += fmt::format(
        "{:>5} {:>8} {:<8} {:>5.2f} {:>9} {:>9} {:>10} {:>7} {:>5}  {}{}\n", rank.rank, rank.pid,
        rank.state, rank.cpus, launch::bytes_text(rank.memory_bytes),
        rank.step ? fmt::to_string(*rank.step) : "-", or_dash(rank.samples_per_second, "{:.1f}"),
        or_dash(rank.operations_per_second, "{:.1f}"),
        rank.waiting_share ? fmt::format("{:.0f}%", 100 * *rank.waiting_share) : "-", rank.where,
        rank.straggler ? "  <- the others wait for it" : "");
  }
  return text;
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

std::string json_of(const JobEntry& job, const std::vector<RankFigures>& ranks) {
  nlohmann::ordered_json json;
  json["job"] = job.id;
  json["world_size"] = job.world_size;
  json["ranks"] = nlohmann::ordered_json::array();
  for (const RankFigures& rank : ranks) {
    nlohmann::ordered_json entry;
    entry["rank"] = rank.rank;
    entry["pid"] = rank.pid;
    entry["state"] = rank.state;
    entry["cpus"] = rank.cpus;
    entry["memory_bytes"] = rank.memory_bytes;
    entry["step"] = or_null(rank.step);
    entry["samples_per_second"] = or_null(rank.samples_per_second);
    entry["operations_per_second"] = or_null(rank.operations_per_second);
    entry["waiting_share"] = or_null(rank.waiting_share);
    entry["where"] = rank.where;
    entry["straggler"] = rank.straggler;
    json["ranks"].push_back(std::move(entry));
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// The ranks change when the job restarts.
std::optional<JobEntry> described_again(const JobEntry& job) {
  try {
    return parse_job(job.socket,
                     launch::ask_job(job.socket, "describe", Deadline::after(kLongestAnswer)));
  } catch (const Error&) {
    return {};  // it is over
  }
}

}  // namespace

int top_command(const Arguments& arguments) {
  CLI::App app(
      "Shows the ranks of a job again and again until it ends or Ctrl-C: busy cpus, memory, steps "
      "and samples per second (of programs that count them), operations per second, the share of "
      "time spent waiting for others. Without JOB: the only job that runs.",
      "paceline top");
  std::string job;
  double interval = 1;
  bool json = false, once = false;
  app.add_option("JOB", job, "A job's id or launcher, as paceline ps shows them");
  app.add_option("--interval", interval, "Seconds between two looks [1]")
      ->check(CLI::Range(kShortestInterval, kLongestInterval));
  app.add_flag("--once", once, "One table [when the output is no terminal]");
  app.add_flag("--json", json, "One JSON object for each look, on a line of its own");
  app.footer(
      "\nExamples:\n  paceline top\n  paceline top --once\n  paceline top --json | jq "
      ".ranks[0].cpus");
  const CommandLine line = split_around_word(app, arguments);
  if (!take_options(app, line)) {
    fmt::print("{}", app.help());
    return 0;
  }
  const bool drawn = !json && !once && isatty(STDOUT_FILENO) == 1;
  const bool one = once || (!json && !drawn);
  std::optional<JobEntry> found = find_agent(line.program);
  const Fd launcher = launch::open_pidfd(found->supervisor);
  RankMeter meter;
  meter.look(*found);
  while (found) {
    pollfd end{launcher.get(), POLLIN, 0};
    if (poll(&end, 1, static_cast<int>(std::lround(interval * 1000))) != 0) break;
    found = described_again(*found);
    if (!found) break;
    const auto ranks = meter.look(*found);
    const std::string text = json ? json_of(*found, ranks) : table_of(*found, ranks);
    fmt::print("{}{}", drawn ? kClear : "", text);
    if (std::fflush(stdout) != 0 || one) break;
  }
  return 0;
}

}  // namespace paceline::apps
