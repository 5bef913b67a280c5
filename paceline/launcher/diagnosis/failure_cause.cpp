#include "paceline/launcher/diagnosis/failure_cause.h"

#include <algorithm>
#include <csignal>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/statvfs.h>

namespace paceline::launcher {
namespace {

constexpr std::string_view kLinePrefix = "  | ";
constexpr int kKilledChild = 128 + SIGKILL;
// What is left of a full /dev/shm: less than a large page, or a hundredth of it.
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

// What stands between two texts of a line; nothing when one of them is missing.
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
           "counted no such kill";
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

// What ld.so wrote before main().
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

// An uncaught exception: the C++ library writes two lines, Python a list and one line.
std::string cause_by_exception(const std::vector<std::string_view>& lines, std::size_t at) {
  constexpr std::string_view kThrown = "terminate called after throwing an instance of '";
  if (const auto type = between(lines[at], kThrown, "'")) {
    const auto text =
        at + 1 < lines.size() ? between(lines[at + 1], "what():  ", "") : std::nullopt;
    const std::string more = *type == "std::bad_alloc"
                                 ? " (memory was refused: see ulimit -v and the size asked for)"
                                 : "";
    return fmt::format("an uncaught exception: {}{}{}", *type, text ? ": " + *text : "", more);
  }
  if (lines[at].find("terminate called without an active exception") != std::string_view::npos) {
    return "std::terminate: a std::thread was destroyed before join(), or an exception was "
           "rethrown "
           "where there is none";
  }
  if (lines[at].starts_with("Traceback (most recent call last):")) {
    for (std::size_t next = at + 1; next < lines.size(); ++next) {
      if (lines[next].empty() || lines[next].front() == ' ') continue;
      return fmt::format("an uncaught Python exception: {}", lines[next]);
    }
  }
  return "";
}

// What a program says that knows why it ends (engine/telemetry/uncaught_errors.h), or this launcher
// inside a rank.
std::string cause_by_program(std::string_view line) {
  for (const std::string_view verdict : {"error: ", "paceline run: "}) {
    if (line.starts_with(verdict)) return std::string(line.substr(verdict.size()));
  }
  return "";
}

std::string cause_by_assertion(std::string_view line) {
  const auto text = between(line, ": Assertion `", "' failed");
  return text ? fmt::format("a failed assertion: {}", *text) : "";
}

// What the C library says before it ends a program whose memory it finds damaged.
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

// The newest line that explains the end.
std::string cause_by_lines(const EndEvidence& evidence) {
  const auto lines = lines_of(evidence.last_lines);
  for (std::size_t at = lines.size(); at-- > 0;) {
    std::string cause = cause_by_loader(lines[at]);
    if (cause.empty()) cause = cause_by_exception(lines, at);
    if (cause.empty() && evidence.end.signal == 0) cause = cause_by_program(lines[at]);
    if (cause.empty() && evidence.end.signal == SIGABRT) cause = cause_by_assertion(lines[at]);
    if (cause.empty() && evidence.end.signal == SIGABRT) cause = cause_by_c_library(lines[at]);
    if (!cause.empty()) return cause;
  }
  return "";
}

}  // namespace

std::optional<FileSystemRoom> room_of(const char* path) {
  struct statvfs room {};
  if (statvfs(path, &room) != 0) return {};
  return FileSystemRoom{room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize};
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
  if (end.signal != 0 && end.signal != SIGABRT) return "";
  return cause_by_lines(evidence);
}

}  // namespace paceline::launcher
