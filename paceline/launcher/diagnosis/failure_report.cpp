#include "paceline/launcher/diagnosis/failure_report.h"

#include <algorithm>
#include <csignal>
#include <map>

#include <fmt/format.h>

#include "paceline/engine/core/exit_code.h"

namespace paceline::launcher {

std::string hint_for(const RankEnd& end) {
  switch (end.signal) {
    case SIGKILL:
      return "likely out of memory (look at dmesg or the cgroup's memory limit), or killed by hand";
    case SIGBUS:
      return "likely /dev/shm or a disk is full, or a mapped file was truncated";
    case SIGILL:
      return "the program uses instructions this cpu lacks; build it without -march=native, or "
             "here";
    case SIGSEGV:
      return "a memory error in the program; a debugger shows where: ulimit -c unlimited";
    case SIGABRT:
      return "the program gave up: an uncaught exception or a failed assertion, see above";
    case SIGFPE:
      return "an integer division by zero";
    case SIGXCPU:
      return "the cpu time limit was reached (ulimit -t)";
    case SIGXFSZ:
      return "a file reached the size limit (ulimit -f)";
    case SIGPIPE:
      return "it wrote to a pipe or socket that no process reads any more";
    default:
      break;
  }
  if (end.signal != 0) return "";
  switch (end.exit_code) {
    case kStateDamaged:
      return "memory of this host changed by itself, or a rank took another step: if it happens "
             "again here, test the memory or leave the host out";
    case kExitNotExecutable:
      return "something was found but could not be executed";
    case kExitNotFound:
      return "a command or a shared library was not found";
    case 137:
      return "a child process was killed (128 + SIGKILL): likely out of memory, look at dmesg";
    case 139:
      return "a child process crashed (128 + SIGSEGV)";
    default:
      return "";
  }
}

namespace {

// The cause stands above them already.
std::string without_cause(const std::string& lines, const std::string& cause) {
  const auto at = cause.empty() ? std::string::npos : lines.rfind(cause + "\n");
  if (at == std::string::npos) return lines;
  const auto before = lines.rfind('\n', at);
  const auto begin = before == std::string::npos ? 0 : before + 1;
  return lines.substr(0, begin) + lines.substr(at + cause.size() + 1);
}

// Their folder is named at the end of the report.
std::string without_records(std::string cause) {
  const auto begin = cause.find("; flight records: ");
  if (begin != std::string::npos) cause.erase(begin, cause.find(')', begin) + 1 - begin);
  return cause;
}

std::string last_words(const FailureContext& context) {
  if (context.last_lines.empty()) return "  it wrote nothing\n";
  const std::string lines = without_cause(context.last_lines, context.cause);
  if (lines.empty()) return "";
  return fmt::format("  the last lines of {}:\n{}", context.name, lines);
}

}  // namespace

std::string failure_report(const RankEnd& culprit, const FailureContext& context) {
  std::string text =
      fmt::format("paceline: {} failed first: {} (host {}, pid {}, after {:.1f} s)\n", context.name,
                  describe(culprit), context.host, culprit.pid, culprit.after.count());
  if (!context.cause.empty()) {
    text += fmt::format("  cause: {}\n", without_records(context.cause));
  } else if (const std::string hint = hint_for(culprit);
             !hint.empty() && (context.stack.empty() || culprit.signal != SIGSEGV)) {
    text += fmt::format("  hint: {}\n", hint);
  }
  if (!context.finished.empty()) {
    text += fmt::format("  before: rank{} {} ended with exit code 0\n",
                        context.finished.size() == 1 ? "" : "s", format_ranks(context.finished));
  }
  text += context.stack;
  text += last_words(context);
  if (!context.log_path.empty()) text += fmt::format("  log: {}\n", context.log_path);
  return text;
}

namespace {

constexpr std::chrono::seconds kMoments{1};

std::string summary(const std::vector<RankEnd>& ends, const char* relation) {
  if (ends.empty()) return "";
  std::vector<int> ranks;
  std::map<std::string, std::vector<int>> by_end;
  for (const RankEnd& end : ends) {
    ranks.push_back(end.rank);
    by_end[describe(end)].push_back(end.rank);
  }
  std::string details;
  for (const auto& [how, who] : by_end) {
    if (!details.empty()) details += "; ";
    details += by_end.size() == 1 ? how : fmt::format("{}: {}", format_ranks(who), how);
  }
  return fmt::format("paceline: rank{} {} {} ({})\n", ranks.size() == 1 ? "" : "s",
                     format_ranks(ranks), relation, details);
}

}  // namespace

std::string followers_summary(const std::vector<RankEnd>& followers) {
  return summary(followers, "ended because of it");
}

std::string fellows_summary(const std::vector<RankEnd>& fellows) {
  return summary(fellows, "also failed");
}

std::string killed_summary(const std::vector<int>& ranks, const std::string& limit) {
  if (ranks.empty()) return "";
  return fmt::format("paceline: rank{} {} did not end {} and {} killed (SIGKILL)\n",
                     ranks.size() == 1 ? "" : "s", format_ranks(ranks), limit,
                     ranks.size() == 1 ? "was" : "were");
}

bool may_be_fellow(const RankEnd& first, const RankEnd& later) {
  return later.exit_code == first.exit_code && later.signal == first.signal &&
         later.signal != SIGTERM && later.signal != SIGKILL && later.at - first.at < kMoments;
}

std::string format_ranks(const std::vector<int>& unsorted) {
  std::vector<int> ranks = unsorted;
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += fmt::to_string(ranks[i]);
    if (end > i) text += fmt::format("{}{}", end == i + 1 ? ", " : "-", ranks[end]);
    i = end + 1;
  }
  return text;
}

}  // namespace paceline::launcher
