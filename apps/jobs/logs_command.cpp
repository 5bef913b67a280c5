// `paceline logs`: prints the output that the ranks of a running job have written, and with -f
// follows it.

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/launcher/output/line_formatter.h"
#include "paceline/launcher/process/process.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/cli/option_value.h"
#include "apps/jobs/job_list.h"

namespace paceline::apps {

namespace {

using namespace std::chrono_literals;

constexpr auto kReadEvery = 100ms;  // poll() cannot wait for a regular file to grow
constexpr off_t kChunkBytes = 1 << 20;
constexpr long kMaxLines = 1'000'000;

// The position at which the last `count` lines of a file begin.
off_t start_of_last(const Fd& file, long count) {
  const off_t size = lseek(file.get(), 0, SEEK_END);
  if (count == 0) return size;
  std::string text;
  // The last byte is left out: if it ends a line, no line begins after it.
  for (off_t end = size - 1; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - kChunkBytes);
    text.resize(static_cast<std::size_t>(end - begin));
    const auto bytes = std::as_writable_bytes(std::span(text));
    if (read_whole_at(file.get(), begin, bytes) != end - begin) return end;
    for (std::size_t at = text.size(); at-- > 0;) {
      if (text[at] == '\n' && --count == 0) return begin + static_cast<off_t>(at) + 1;
    }
    end = begin;
  }
  return 0;
}

// Prints the log of one rank, beginning with its last lines.
class LogTail {
 public:
  LogTail(std::string path, const std::string& prefix)
      : path_(std::move(path)), file_(open_to_read(path_)), lines_(prefix) {}

  bool is_open() const { return static_cast<bool>(file_); }

  void begin_at_last(long count) { lseek(file_.get(), start_of_last(file_, count), SEEK_SET); }

  void print_new() {
    char bytes[65536];
    ssize_t length = 0;
    while ((length = read_some(file_.get(), std::as_writable_bytes(std::span(bytes)))) > 0) {
      std::string out;
      lines_.feed(std::string_view(bytes, static_cast<std::size_t>(length)), out);
      std::fwrite(out.data(), 1, out.size(), stdout);
    }
  }

  void finish() {
    std::string out;
    lines_.finish(out);
    std::fwrite(out.data(), 1, out.size(), stdout);
  }

 private:
  std::string path_;
  Fd file_;
  launcher::LineFormatter lines_;
};

// `alone`: no other log is shown, so lines need no "[RANK] " before them.
LogTail open_log(const JobEntry& agent, int rank, bool alone) {
  if (agent.log_directory.empty()) {
    throw UsageError(
        fmt::format("{} keeps no logs: its launcher could not make the folder for them", agent.id));
  }
  LogTail log(fmt::format("{}/rank-{:03}.log", agent.log_directory, rank),
              alone ? "" : fmt::format("[{}] ", rank));
  if (!log.is_open()) {
    throw system_error(
        fmt::format("opening the log of rank {} in {} (the rank may run on another machine)", rank,
                    launcher::neutralise_in_line(agent.log_directory)));
  }
  return log;
}

// Opens the log of one rank, which may have ended, or the logs of all ranks that run on this
// machine.
std::vector<LogTail> open_logs(const Job& job, const std::string& wanted) {
  if (job.agents.empty()) throw UsageError(no_ranks_here(job));
  std::vector<LogTail> logs;
  if (!wanted.empty()) {
    const auto rank =
        static_cast<int>(whole_number("--rank", wanted, 0, job.agents.front().world_size - 1));
    const auto agent = std::find_if(job.agents.begin(), job.agents.end(), [&](const auto& one) {
      return std::any_of(one.ranks.begin(), one.ranks.end(),
                         [&](const JobRank& own) { return own.rank == rank; });
    });
    logs.push_back(open_log(agent == job.agents.end() ? job.agents.front() : *agent, rank, true));
    return logs;
  }
  std::size_t count = 0;
  for (const JobEntry& agent : job.agents) count += agent.ranks.size();
  for (const JobEntry& agent : job.agents) {
    for (const JobRank& rank : agent.ranks) logs.push_back(open_log(agent, rank.rank, count == 1));
  }
  return logs;
}

}  // namespace

int logs_command(const Arguments& arguments) {
  CLI::App app(
      "Prints the last output of a running job's ranks, with control characters as text. Without "
      "JOB: the only job that runs.",
      "paceline logs");
  std::string rank;
  long count = 20;
  bool follow = false;
  OptionTable table(app, /*has_variables=*/false);
  table.word("JOB", kJobHelp);
  table.value("--rank", "R", "Only this rank, without \"[3] \" before the lines",
              text_target(rank));
  table.value("-n,--lines", "N", "Lines of each rank", number_target(count, 0, kMaxLines));
  table.flag("-f,--follow", "Keep printing new output until the job ends", bool_target(follow));
  app.footer(
      "\nExamples:\n  paceline logs\n  paceline logs -f --rank 1\n  paceline logs 1f0c93aa -n 100");
  const auto words = table.read_line(arguments, 1);
  if (!words) return 0;
  const Job found = find_job(*words);
  const Fd launcher = launcher::open_pidfd(found.entries().front().supervisor);
  std::vector<LogTail> logs = open_logs(found, rank);
  for (LogTail& log : logs) log.begin_at_last(count);
  pollfd ends[] = {{launcher.get(), POLLIN, 0}, {STDOUT_FILENO, 0, 0}};
  for (bool over = false; !over;) {
    over = !follow || await(launcher.get(), POLLIN, Deadline::after(0ms));
    for (LogTail& log : logs) log.print_new();
    if (std::fflush(stdout) != 0) break;
    if (!over && poll_for(ends, kReadEvery) > 0 && ends[1].revents != 0)
      return 0;  // the reader of the output has closed its end
  }
  for (LogTail& log : logs) log.finish();
  return 0;
}

}  // namespace paceline::apps
