#include "apps/bench_output.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>

#include "paceline/engine/core/counted.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/shell_words.h"
#include "paceline/launcher/process/signal_end.h"

#include "apps/bench_options.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

// Of the terminal or of whoever ends this process; 0 before.
volatile std::sig_atomic_t signal_that_came = 0;

void print_participants(const bench::ReportHead& report) {
  const bench::Machine& machine = report.machine;
  fmt::print("{}, {}, {:.0f} GiB, {}\n", machine.cpu, counted(machine.cores, "core"),
             machine.memory_gib, machine.kernel);
  for (const bench::Participant& participant : report.participants)
    fmt::print("{}: {}\n", participant.name, participant.version);
  if (!report.variables.empty()) fmt::print("environment: {}\n", report.variables);
  for (const std::string& missing : report.missing)
    fmt::print(stderr, "paceline bench: missing: {}\n", missing);
  fmt::print("\n");
}

void print_notes(std::span<const std::string> notes) {
  for (const std::string& note : notes) fmt::print(stderr, "paceline bench: {}\n", note);
}

}  // namespace

void require_writable(const std::string& flag, const std::string& path) {
  if (path.empty() || path == kStandardOutput) return;
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  const int error = errno;
  if (!file) throw UsageError(fmt::format("{}: '{}': {}", flag, path, std::strerror(error)));
}

std::string bench_command_text(const std::vector<std::string>& arguments) {
  std::string text = "paceline bench";
  for (const std::string& argument : arguments) text += " " + shell_quoted(argument);
  return text;
}

void end_bench_at_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { signal_that_came = number; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool bench_was_interrupted() { return signal_that_came != 0; }

int measure_and_write(const bench::ReportHead& report, const std::function<void()>& measure,
                      const std::function<void()>& write) {
  print_participants(report);
  print_notes(report.notes);
  const std::size_t num_said = report.notes.size();
  try {
    measure();
  } catch (const Error&) {
    const auto notes = std::span(report.notes).subspan(num_said);
    print_notes(notes.first(notes.size() - 1));  // the last one is the error
    write();
    throw;
  }
  print_notes(std::span(report.notes).subspan(num_said));
  write();
  if (signal_that_came != 0) launcher::end_by_signal(signal_that_came);
  return 0;
}

}  // namespace paceline::apps
