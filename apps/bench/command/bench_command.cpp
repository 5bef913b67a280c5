// `paceline bench`: prints and writes measurements, and runs a session of collectives.

#include "apps/bench/command/bench_command.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/resource_limits.h"
#include "paceline/engine/core/system/topology.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/process/process.h"

#include "apps/bench/command/bench_options.h"
#include "apps/bench/operation.h"
#include "apps/cli/command_line.h"
#include "apps/cli/commands.h"
#include "apps/cli/option_value.h"
#include "apps/cli/own_program.h"

namespace paceline::apps {

namespace {

// The newest SIGINT or SIGTERM that has arrived; 0: none.
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
    print_notes(notes.first(notes.size() - 1));  // without the last note, which is the error
    write();
    throw;
  }
  print_notes(std::span(report.notes).subspan(num_said));
  write();
  if (signal_that_came != 0) launcher::end_by_signal(signal_that_came);
  return 0;
}

namespace {

constexpr const char* kBenchExamples = R"(
Times are those of the slowest rank; bandwidths are algorithm and bus bandwidth as in nccl-tests, in
10^9 bytes a second.

Examples:
  paceline bench all_reduce
  paceline bench all_reduce --nproc-per-node 2 --sizes 4K,64K,1M --dtype float32 --json FILE
  paceline bench all_reduce --memory symmetric,ordinary --peer all --html curves.html
  paceline bench all --sizes 64K --check
  paceline bench --calibrate
  paceline bench rpc --peer socket
  paceline bench all_reduce --simulate hosts=64,ranks=8,link=25Gbit
  paceline run --hosts a:1,b:1 paceline bench all_reduce --predict

Ctrl-C ends the measurement and writes the results so far.)";

constexpr const char* kBenchUsage =
    "Usage: paceline bench OPERATION[,...] [options]\n"
    "       paceline bench --calibrate\n"
    "       paceline bench rpc [options]   (calls between workers; has a --help of its "
    "own)\n\n"
    "Operations: all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, "
    "gather, scatter,\n            barrier, all_gather_v, reduce_scatter_v, all_to_all_v, "
    "all_reduce_coalesced, send_recv;\n            or all\n";

void require_memory(const bench::SessionOptions& options) {
  const std::size_t needed = bench::bytes_needed(options);
  const auto room = memory_room();
  if (room && needed > room->bytes) {
    fail(ErrorCode::kSystem,
         "{} with buffers of {} need {} of memory, but {} {} are free; choose smaller --sizes",
         counted(options.num_ranks, "rank"), size_text(options.sizes.back()), size_text(needed),
         size_text(room->bytes), room->source);
  }
}

void measure(bench::Session& session) {
  bench::SessionEvents events;
  events.is_interrupted = bench_was_interrupted;
  std::optional<bench::Operation> shown;
  events.on_rows = [&](const std::vector<bench::Row>& rows) {
    if (rows.empty()) return;
    if (shown != rows.front().op) {
      fmt::print("{}{}", shown ? "\n" : "", bench::table_heading(rows.front()));
      shown = rows.front().op;
    }
    fmt::print("{}", bench::table_rows(rows));
    std::fflush(stdout);
  };
  session.run(events);
}

void write_files(const BenchOptions& options, const bench::Report& report) {
  write_bench_file(options.json, bench::to_json(report));
  write_bench_file(options.csv, bench::to_csv(report));
  write_bench_file(options.html, bench::to_html(report));
}

int measure_collectives(const BenchOptions& options) {
  end_bench_at_signals();
  bench::Session session(options.session);
  return measure_and_write(
      session.report(), [&] { measure(session); }, [&] { write_files(options, session.report()); });
}

}  // namespace

int bench_command(const Arguments& arguments) {
  if (!arguments.empty() && arguments.front() == "rpc") return bench_calls_command(arguments);
  CLI::App app("Measures collectives on this machine, alone or side by side with other libraries.",
               "paceline bench");
  app.footer(kBenchExamples);
  set_usage(app, kBenchUsage);
  OptionTable table(app, /*has_variables=*/false);
  BenchOptions options;
  declare_bench_options(table, options);
  const CommandLine line = split_around_words(app, arguments);
  if (!table.take(line)) return 0;
  check_bench_options(table, line.program, discover_topology().num_usable_cores(), options);
  options.session.command = "paceline bench " + shell_line(arguments);
  require_fitting_launcher(table, options.mode, detect_launch_environment(),
                           options.session.command);
  options.session.version = version_text();
  options.session.programs = contestants_folder();
  if (options.writes_to_output()) leave_output_to_files();
  require_writable("--json", options.json);
  if (options.mode != BenchMode::kMeasure) return plan_with_bench(options);
  require_writable("--csv", options.csv);
  require_writable("--html", options.html);
  require_memory(options.session);
  return measure_collectives(options);
}

}  // namespace paceline::apps
