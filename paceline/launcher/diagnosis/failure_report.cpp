#include "paceline/launcher/diagnosis/failure_report.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"

namespace paceline::launcher {

namespace {

// The longest time that a signal takes to end a process.
constexpr std::chrono::nanoseconds kLongestDeath = std::chrono::seconds(1);

bool was_killed(const Failure& failure) { return failure.signal != 0 && failure.signal != SIGABRT; }

// Reads the rank in the world, here 3, from a text that begins with "3: ..." or with "1 (rank 3 of
// the world, box): ..." (engine/core/error.h).
std::optional<AccusedRank> accused(std::string_view words, bool has_aborted) {
  constexpr std::string_view kInWorld = " (rank ";
  const auto end = std::min(words.find_first_not_of("0123456789"), words.size());
  if (words.substr(end).starts_with(kInWorld)) words.remove_prefix(end + kInWorld.size());
  int rank = -1;
  const auto result = std::from_chars(words.data(), words.data() + words.size(), rank);
  if (result.ec != std::errc()) return {};
  return AccusedRank{rank, has_aborted};
}

}  // namespace

bool failed_before(const Failure& later, const Failure& earlier) {
  const bool alike = was_killed(later) == was_killed(earlier);
  const bool timed = later.at && earlier.at;
  if (timed) {
    const auto ahead = *earlier.at - *later.at;
    const auto doubt = later.clock_error + earlier.clock_error +
                       (alike ? std::chrono::nanoseconds(0) : kLongestDeath);
    if (std::chrono::abs(ahead) > doubt) return ahead > std::chrono::nanoseconds(0);
  }
  if (!alike) return was_killed(later);
  return timed && *later.at < *earlier.at;
}

std::optional<AccusedRank> accused_rank(std::string_view words) {
  constexpr std::string_view kAdvice = "; see the output of rank ";  // in engine/transport/mesh.cpp
  constexpr std::string_view kAborted = " was aborted by rank ";
  if (const auto at = words.rfind(kAdvice); at != std::string_view::npos)
    return accused(words.substr(at + kAdvice.size()), false);
  const auto at = words.rfind(kAborted);
  if (at == std::string_view::npos) return {};
  words.remove_prefix(at + kAborted.size());
  // "1 (box): rank 2: why" means that rank 1 passed on an error of rank 2.
  constexpr std::string_view kSaid = "): rank ";
  const auto said = words.substr(0, words.find('\n')).find(kSaid);
  return accused(said == std::string_view::npos ? words : words.substr(said + kSaid.size()), true);
}

std::string hint_for(const RankEnd& end) {
  switch (end.signal) {
    case SIGKILL:
      return "likely out of memory (look at dmesg or the cgroup's memory limit), or killed by hand";
    case SIGBUS:
      return "likely /dev/shm or a disk is full, or a mapped file was truncated";
    case SIGILL:
      return "the program uses instructions this cpu lacks; build it on this machine, or without "
             "-march=native";
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
      return "memory of this host was damaged or overwritten, or a rank took a different step: if "
             "it happens again on this host, test its memory or leave the host out";
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

// Leaves out the line with the cause, because the report has already shown it.
std::string without_cause(const std::string& lines, const std::string& cause) {
  const auto at = cause.empty() ? std::string::npos : lines.rfind(cause + "\n");
  if (at == std::string::npos) return lines;
  const auto before = lines.rfind('\n', at);
  const auto begin = before == std::string::npos ? 0 : before + 1;
  return lines.substr(0, begin) + lines.substr(at + cause.size() + 1);
}

// Leaves out the folder of the flight records, because the end of the report names it.
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
  } else if (const std::string hint = hint_for(culprit); !hint.empty()) {
    text += fmt::format("  hint: {}\n", hint);
  }
  if (!context.finished.empty()) {
    text += fmt::format("  before: {} ended with exit code 0\n", ranks_text(context.finished));
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
  return fmt::format("paceline: {} {} ({})\n", ranks_text(ranks), relation, details);
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
  return fmt::format("paceline: {} did not end {} and {} killed (SIGKILL)\n", ranks_text(ranks),
                     limit, ranks.size() == 1 ? "was" : "were");
}

bool may_be_fellow(const RankEnd& first, const RankEnd& later) {
  return later.exit_code == first.exit_code && later.signal == first.signal &&
         later.signal != SIGTERM && later.signal != SIGKILL && later.at - first.at < kMoments;
}

namespace {

constexpr std::string_view kLinePrefix = "  | ";
constexpr int kKilledChild = 128 + SIGKILL;
// /dev/shm counts as full if its free space is at most this (a huge page) or 1% of its size.
constexpr std::uint64_t kNearlyNothing = 2 << 20;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    if (lines.back().starts_with(kLinePrefix)) lines.back().remove_prefix(kLinePrefix.size());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The text between two other texts in a line; nullopt if one of them is missing.
std::optional<std::string> between(std::string_view line, std::string_view before,
                                   std::string_view after) {
  const auto begin = line.find(before);
  if (begin == std::string_view::npos) return {};
  line.remove_prefix(begin + before.size());
  const auto end = after.empty() ? line.size() : line.find(after);
  if (end == std::string_view::npos) return {};
  return std::string(line.substr(0, end));
}

bool has_grown(const std::optional<std::uint64_t>& before,
               const std::optional<std::uint64_t>& after) {
  return before && after && *after > *before;
}

std::string used_text(const EndEvidence& evidence) {
  if (evidence.kernel_kill && evidence.kernel_kill->used_bytes > 0) {
    return fmt::format("; the rank used {}", bytes_text(evidence.kernel_kill->used_bytes));
  }
  if (evidence.end.peak_bytes == 0) return "";
  return fmt::format("; the rank used {} at its peak", bytes_text(evidence.end.peak_bytes));
}

std::string cause_of_kill(const EndEvidence& evidence) {
  const auto& kill = evidence.kernel_kill;
  const bool in_cgroup = (kill && kill->in_cgroup) ||
                         has_grown(evidence.before.cgroup_kills, evidence.after.cgroup_kills);
  const bool on_machine =
      kill || has_grown(evidence.before.machine_kills, evidence.after.machine_kills);
  if (in_cgroup && evidence.after.limit) {
    return fmt::format("out of memory: the kernel killed it at the cgroup's limit of {} ({}){}",
                       bytes_text(*evidence.after.limit), evidence.after.limit_source,
                       used_text(evidence));
  }
  if (in_cgroup || on_machine) {
    const std::string all = evidence.after.machine_bytes == 0
                                ? ""
                                : fmt::format(" of {}", bytes_text(evidence.after.machine_bytes));
    return fmt::format("out of memory: the kernel killed it when the machine's memory{} was full{}",
                       all, used_text(evidence));
  }
  if (evidence.end.signal == SIGKILL && evidence.before.machine_kills &&
      evidence.after.machine_kills) {
    return "killed from outside (kill -9, a batch system), not for lack of memory: the kernel "
           "counted no out-of-memory kill";
  }
  return "";
}

std::string cause_of_bus_error(const EndEvidence& evidence) {
  const auto& shared = evidence.shared;
  if (!shared || shared->total_bytes == 0) return "";
  if (shared->free_bytes > std::max(kNearlyNothing, shared->total_bytes / 100)) return "";
  return fmt::format(
      "/dev/shm is full ({} free of {}): enlarge it (mount -o remount,size=..., docker run "
      "--shm-size), or choose PACELINE_TRANSPORT=tcp",
      bytes_text(shared->free_bytes), bytes_text(shared->total_bytes));
}

// Reads an error that ld.so writes before main().
std::string cause_by_loader(std::string_view line) {
  if (const auto name = between(line, "error while loading shared libraries: ", ": ")) {
    return fmt::format(
        "the shared library {} is missing or unusable on this machine; ldd PROGRAM lists them, "
        "LD_LIBRARY_PATH adds folders",
        *name);
  }
  if (const auto rest = between(line, "symbol lookup error: ", "")) {
    return fmt::format("a shared library lacks a symbol that the program was linked with: {}",
                       *rest);
  }
  if (line.find("' not found (required by ") != std::string_view::npos) {
    const auto version = between(line, "version `", "'");
    return fmt::format(
        "this machine's libraries are older than those the program was built with: {} is missing",
        version.value_or("a version"));
  }
  return "";
}

// The line and, if it announces a list (such as the tensors in which two models differ), the first
// line of the list.
std::string with_detail(std::string_view line, const std::vector<std::string_view>& lines,
                        std::size_t at) {
  std::string text(line);
  if (!line.ends_with(':') || at + 1 >= lines.size()) return text;
  const std::string_view next = lines[at + 1];
  const auto begin = next.find_first_not_of(" \t");
  if (begin != 0 && begin != std::string_view::npos) text += fmt::format(" {}", next.substr(begin));
  return text;
}

// Reads the report of an uncaught exception. The C++ library writes two lines; Python writes a
// traceback, and then one line about the exception.
std::string cause_by_exception(const std::vector<std::string_view>& lines, std::size_t at) {
  constexpr std::string_view kThrown = "terminate called after throwing an instance of '";
  if (const auto type = between(lines[at], kThrown, "'")) {
    const auto text =
        at + 1 < lines.size() ? between(lines[at + 1], "what():  ", "") : std::nullopt;
    const std::string more = *type == "std::bad_alloc"
                                 ? " (memory was refused: see ulimit -v and the size asked for)"
                                 : "";
    return fmt::format("an uncaught exception: {}{}{}", *type,
                       text ? ": " + with_detail(*text, lines, at + 1) : "", more);
  }
  if (lines[at].find("terminate called without an active exception") != std::string_view::npos) {
    return "std::terminate: a std::thread was destroyed before join(), or an exception was "
           "rethrown "
           "where there is none";
  }
  if (lines[at].starts_with("Traceback (most recent call last):")) {
    for (std::size_t next = at + 1; next < lines.size(); ++next) {
      if (lines[next].empty() || lines[next].front() == ' ') continue;
      return fmt::format("an uncaught Python exception: {}", with_detail(lines[next], lines, next));
    }
  }
  return "";
}

// Reads a line in which a program reports why it ends (engine/telemetry/crash_reporter.h), or in
// which a launcher that runs as a rank reports its error.
std::string cause_by_program(const std::vector<std::string_view>& lines, std::size_t at) {
  for (const std::string_view verdict : {"error: ", "paceline run: "}) {
    if (lines[at].starts_with(verdict))
      return with_detail(lines[at].substr(verdict.size()), lines, at);
  }
  return "";
}

std::string cause_by_assertion(std::string_view line) {
  const auto text = between(line, ": Assertion `", "' failed");
  return text ? fmt::format("a failed assertion: {}", *text) : "";
}

// Reads the message with which the C library ends a program whose memory is damaged.
std::string cause_by_c_library(std::string_view line) {
  constexpr std::string_view kWords[] = {"double free or corruption",
                                         "free(): ",
                                         "malloc(): ",
                                         "realloc(): ",
                                         "munmap_chunk(): ",
                                         "malloc_consolidate(): ",
                                         "corrupted size vs. prev_size",
                                         "corrupted double-linked list",
                                         "*** stack smashing detected ***",
                                         "*** buffer overflow detected ***"};
  const bool says = std::any_of(std::begin(kWords), std::end(kWords),
                                [line](std::string_view words) { return line.starts_with(words); });
  if (!says) return "";
  return fmt::format(
      "damaged memory, as the C library found: {}; something was freed twice, used after it was "
      "freed or written beyond its end, perhaps long before: -fsanitize=address or valgrind shows "
      "where",
      line);
}

// The cause of a crash that the engine explained just before the crash (AccessFaultRange).
std::string cause_by_last_line(const EndEvidence& evidence) {
  const auto lines = lines_of(evidence.last_lines);
  return lines.empty() ? "" : cause_by_program(lines, lines.size() - 1);
}

// The cause according to the newest line that explains the end.
std::string cause_by_lines(const EndEvidence& evidence) {
  const auto lines = lines_of(evidence.last_lines);
  for (std::size_t at = lines.size(); at-- > 0;) {
    std::string cause = cause_by_loader(lines[at]);
    if (cause.empty()) cause = cause_by_exception(lines, at);
    if (cause.empty() && evidence.end.signal == 0) cause = cause_by_program(lines, at);
    if (cause.empty() && evidence.end.signal == SIGABRT) cause = cause_by_assertion(lines[at]);
    if (cause.empty() && evidence.end.signal == SIGABRT) cause = cause_by_c_library(lines[at]);
    if (!cause.empty()) return cause;
  }
  return "";
}

// Whether the name of the function is followed by its line, as in "step (train.cpp:40)".
bool has_line(std::string_view frame) {
  const auto at = frame.rfind(" (");
  return at != std::string_view::npos && frame.ends_with(')') &&
         frame.find(':', at) != std::string_view::npos;
}

}  // namespace

std::optional<FileSystemSpace> space_of(const char* path) {
  struct statvfs space {};
  if (statvfs(path, &space) != 0) return {};
  return FileSystemSpace{space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize};
}

std::string cause_of_crash(const RankEnd& end, const std::vector<std::string>& frames) {
  if (end.signal == 0 || frames.empty()) return "";
  std::string place = frames.front();
  const auto known = std::find_if(frames.begin(), frames.end(), has_line);
  if (known != frames.begin() && known != frames.end())
    place += fmt::format(", called from {}", *known);
  const std::string hint =
      end.signal == SIGSEGV
          ? "a memory error, such as a null pointer or a wrong index; -fsanitize=address shows more"
          : hint_for(end);
  return fmt::format("a crash in {}{}{}", place, hint.empty() ? "" : ": ", hint);
}

std::string short_reason(const std::string& cause) {
  constexpr std::string_view kOutOfMemory = "out of memory";
  return cause.starts_with(kOutOfMemory) ? std::string(kOutOfMemory) : "";
}

std::string cause_of(const EndEvidence& evidence) {
  const RankEnd& end = evidence.end;
  if (end.signal == SIGKILL || (end.signal == 0 && end.exit_code == kKilledChild)) {
    return cause_of_kill(evidence);
  }
  if (end.signal == SIGBUS) return cause_of_bus_error(evidence);
  if (end.signal == SIGSEGV) return cause_by_last_line(evidence);
  if (end.signal != 0 && end.signal != SIGABRT) return "";
  return cause_by_lines(evidence);
}

}  // namespace paceline::launcher
