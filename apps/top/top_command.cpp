// `paceline top`: shows a job's ranks as a table that is redrawn regularly and cut to the window.
// The table is printed only once if the output is not a terminal.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/diagnosis/out_of_memory.h"
#include "paceline/launcher/messages/running_jobs.h"
#include "paceline/launcher/process/process.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/top/job_meters.h"
#include "apps/top/screen.h"

namespace paceline::apps {

namespace {

using namespace std::chrono_literals;

constexpr auto kLongestTopAnswer = 5s;
constexpr double kShortestInterval = 0.1, kLongestInterval = 3600;

std::string or_dash(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

constexpr std::size_t kHeader = 3;  // lines before those of the ranks

std::vector<std::string> table_of(const JobEntry& job, const std::vector<RankFigures>& ranks) {
  std::vector<std::string> lines = {
      fmt::format("{}  {}  {}, runs for {}", job.id, short_command(job, 48),
                  counted(job.world_size, "rank"), age_text(std::time(nullptr) - job.started)),
      "",
      fmt::format("{:>5} {:>8} {:<8} {:>5} {:>9} {:>9} {:>10} {:>7} {:>5}  {}", "RANK", "PID",
                  "STATE", "CPU", "MEMORY", "STEP", "SAMPLES/S", "OPS/S", "WAIT", "WHERE")};
  for (const RankFigures& rank : ranks) {
    lines.push_back(fmt::format(
        "{:>5} {:>8} {:<8} {:>5.2f} {:>9} {:>9} {:>10} {:>7} {:>5}  {}{}", rank.rank, rank.pid,
        rank.state, rank.cpus, launcher::bytes_text(rank.memory_bytes),
        rank.step ? fmt::to_string(*rank.step) : "-", or_dash(rank.samples_per_second, "{:.1f}"),
        or_dash(rank.operations_per_second, "{:.1f}"),
        rank.waiting_share ? fmt::format("{:.0f}%", 100 * *rank.waiting_share) : "-", rank.where,
        rank.straggler ? "  <- the others wait for it" : ""));
  }
  return lines;
}

std::string call_line(const MethodFigures& method) {
  const auto time = [](const std::optional<double>& seconds) {
    return seconds ? time_text(*seconds) : "-";
  };
  const bool serves = method.side == CallSide::kCallee;
  return fmt::format("  {:<6} {:<28} {:>9} {:>8} {:>8} {:>9} {:>7} {:>7}",
                     serves ? "serves" : "calls", method.method,
                     or_dash(method.per_second, "{:.1f}"), time(method.p50), time(method.p99),
                     method.under_way, serves ? fmt::to_string(method.queued) : "-", method.failed);
}

// The table of the ranks that are workers of calls; empty if there are none.
std::vector<std::string> table_of(const std::vector<WorkerFigures>& workers) {
  if (workers.empty()) return {};
  std::vector<std::string> lines = {
      "", fmt::format("  {:<6} {:<28} {:>9} {:>8} {:>8} {:>9} {:>7} {:>7}", "", "METHOD", "CALLS/S",
                      "P50", "P99", "UNDER WAY", "QUEUED", "FAILED")};
  for (const WorkerFigures& worker : workers) {
    lines.push_back(fmt::format("{} (rank {}): {}, {}", worker.worker, worker.rank,
                                counted(worker.references, "reference"),
                                counted(worker.objects, "object")));
    for (const MethodFigures& method : worker.methods) lines.push_back(call_line(method));
  }
  return lines;
}

// Returns as many lines as fit. If some do not fit, the last line gives their number.
std::vector<std::string> fitting(std::vector<std::string> lines, int rows, const char* what) {
  const std::size_t room = rows > 0 ? std::max<std::size_t>(kHeader + 1, rows) : lines.size();
  if (lines.size() <= room) return lines;
  const std::size_t left_out = lines.size() - (room - 1);
  lines.resize(room - 1);
  lines.push_back(fmt::format("and {} more {}", left_out, what));
  return lines;
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json json_of(const MethodFigures& method) {
  nlohmann::ordered_json entry;
  entry["side"] = method.side == CallSide::kCallee ? "serves" : "calls";
  entry["method"] = method.method;
  entry["per_second"] = or_null(method.per_second);
  entry["p50_seconds"] = or_null(method.p50);
  entry["p99_seconds"] = or_null(method.p99);
  entry["under_way"] = method.under_way;
  entry["queued"] = method.queued;
  entry["failed"] = method.failed;
  return entry;
}

std::string json_of(const JobEntry& job, const std::vector<RankFigures>& ranks,
                    const std::vector<WorkerFigures>& workers) {
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
  json["workers"] = nlohmann::ordered_json::array();
  for (const WorkerFigures& worker : workers) {
    nlohmann::ordered_json entry;
    entry["worker"] = worker.worker;
    entry["rank"] = worker.rank;
    entry["references"] = worker.references;
    entry["objects"] = worker.objects;
    entry["methods"] = nlohmann::ordered_json::array();
    for (const MethodFigures& method : worker.methods) entry["methods"].push_back(json_of(method));
    json["workers"].push_back(std::move(entry));
  }
  return json_text(json) + "\n";
}

// The events that end the wait for the next update.
enum class Wake { kLook, kResize, kEnd };

// Asks the launcher again, because the ranks change when the job restarts. nullopt if the job is
// over.
std::optional<JobEntry> described_again(const JobEntry& job) {
  try {
    return parse_job(job.socket,
                     launcher::ask_job(job.socket, "describe", Deadline::after(kLongestTopAnswer)));
  } catch (const Error&) {
    return {};  // the job is over
  }
}

class Top {
 public:
  struct Options {
    std::chrono::nanoseconds interval = 1s;
    bool json = false, once = false;
  };

  Top(JobEntry job, const Options& options)
      : job_(std::move(job)), options_(options), launcher_(launcher::open_pidfd(job_.supervisor)) {
    if (!options.json && !options.once && can_draw_on(STDOUT_FILENO)) screen_.emplace();
    meter_.look(job_);
    calls_.look(job_);
  }

  // Updates the table until the job or this command ends. Returns the signal that ended this
  // command; 0: none.
  int run() {
    const bool one = options_.once || (!options_.json && !screen_);
    auto next = next_look();
    for (Wake wake; (wake = wait_until(next)) != Wake::kEnd;) {
      if (wake == Wake::kResize) {
        draw();
      } else {
        const auto found = described_again(job_);
        if (!found) break;
        job_ = *found;
        show(meter_.look(job_), calls_.look(job_));
        next = next_look();
      }
      if (std::fflush(stdout) != 0 || one) break;
    }
    return signal_;
  }

 private:
  Deadline next_look() const { return Deadline::after(options_.interval); }

  Wake wait_until(const Deadline& next) {
    pollfd fds[] = {{launcher_.get(), POLLIN, 0},
                    {STDOUT_FILENO, 0, 0},  // reports an error when the reader has closed its end
                    {screen_ ? screen_->keys() : -1, POLLIN, 0},
                    {screen_ ? screen_->signals() : -1, POLLIN, 0}};
    while (true) {
      const int ready = poll_for(fds, std::chrono::milliseconds(next.poll_timeout_ms()));
      if (ready == 0 && next.expired()) return Wake::kLook;
      if (ready <= 0) continue;
      if (fds[0].revents != 0 || fds[1].revents != 0) return Wake::kEnd;
      if (fds[2].revents != 0 && screen_->read_quit()) return Wake::kEnd;
      if (fds[3].revents == 0) continue;
      const int signal = screen_->read_signal();
      if (signal == SIGWINCH) return Wake::kResize;
      signal_ = signal;
      return Wake::kEnd;
    }
  }

  void show(const std::vector<RankFigures>& ranks, const std::vector<WorkerFigures>& workers) {
    if (options_.json) return fmt::print("{}", json_of(job_, ranks, workers));
    table_ = table_of(job_, ranks);
    const auto calls = table_of(workers);
    has_calls_ = !calls.empty();
    table_.insert(table_.end(), calls.begin(), calls.end());
    if (screen_) return draw();
    for (const std::string& line : table_) fmt::print("{}\n", line);
  }

  void draw() {
    screen_->draw(fitting(table_, screen_->size().rows, has_calls_ ? "lines" : "ranks"));
  }

  JobEntry job_;
  const Options options_;
  const Fd launcher_;
  RankMeter meter_;
  CallMeter calls_;
  std::optional<Screen> screen_;
  std::vector<std::string> table_;
  bool has_calls_ = false;
  int signal_ = 0;  // the signal that ended this command; 0: none
};

}  // namespace

int top_command(const Arguments& arguments) {
  CLI::App app(
      "Shows a job's ranks continuously until it ends, Ctrl-C or q: busy cpus, memory, steps and "
      "samples per second (of programs that count them), operations per second, the share of time "
      "spent waiting for others. For workers of calls also: calls per second, their median and "
      "99th percentile, calls under way and queued, by method. Without JOB: the only job that "
      "runs.",
      "paceline top");
  Top::Options options;
  OptionTable table(app, /*has_variables=*/false);
  table.word("JOB", kJobHelp);
  table.value("--interval", "S", "Seconds between updates",
              seconds_target(options.interval, kLongestInterval, kShortestInterval));
  table.flag("--once", "Print one table [when the output is not a terminal, or a dumb one]",
             bool_target(options.once));
  table.flag("--json", "One JSON object per update, on a line of its own",
             bool_target(options.json));
  app.footer(
      "\nFields of a line of --json (null: unknown): job, world_size;\n"
      "ranks: rank, pid, state (running, stopped, gone), cpus (busy ones), memory_bytes, step,\n"
      "samples_per_second, operations_per_second, waiting_share (of the time, for other ranks),\n"
      "where (the last operation), straggler;\n"
      "workers (rpc::Workers): worker, rank, references (held to remote objects),\n"
      "objects (own ones that others refer to), methods: side (calls, serves), method,\n"
      "per_second, p50_seconds, p99_seconds, under_way, queued, failed (since the start).\n\n"
      "Examples:\n  paceline top\n  paceline top --once\n  paceline top --json | jq "
      ".ranks[0].cpus");
  const auto words = table.read_line(arguments, 1);
  if (!words) return 0;
  const int signal = Top(find_agent(*words), options).run();
  if (signal != 0) launcher::end_by_signal(signal);
  return 0;
}

}  // namespace paceline::apps
