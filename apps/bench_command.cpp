#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include <fcntl.h>
#include <fmt/format.h>

#include "paceline/bench/size_list.h"
#include "paceline/core/check.h"
#include "paceline/core/counted.h"
#include "paceline/core/fd.h"
#include "paceline/core/topology.h"
#include "paceline/process/shell_words.h"
#include "paceline/process/signal_end.h"
#include "paceline/rendezvous/launch_environment.h"

#include "apps/bench_modes.h"
#include "apps/bench_options.h"
#include "apps/bench_planning.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/own_program.h"
#include "apps/usage_error.h"
#include "apps/version.h"

namespace paceline::apps {
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
  paceline bench all_reduce --simulate hosts=64,ranks=8,link=25Gbit
  paceline run --hosts a:1,b:1 paceline bench all_reduce --predict

Ctrl-C ends the measurement and writes what there is.)";

// Of the terminal or of whoever ends this process; 0 before.
volatile std::sig_atomic_t signal_that_came = 0;

// The first one ends the measurement, the second one this process.
void end_at_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { signal_that_came = number; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

std::string typed(const Arguments& arguments) {
  std::string text = "paceline bench";
  for (const std::string& argument : arguments) text += " " + launch::shell_quoted(argument);
  return text;
}

struct BenchFormatter : CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: paceline bench OPERATION[,...] [options]\n"
           "       paceline bench --calibrate\n\n"
           "Operations: all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, "
           "gather, scatter,\n            barrier, all_gather_v, reduce_scatter_v, all_to_all_v, "
           "all_reduce_coalesced, send_recv;\n            or all\n";
  }
};

// Operations may stand before, between and behind the options: they become the line's program.
CommandLine split_around_operations(const CLI::App& app, const Arguments& arguments) {
  CommandLine all;
  std::vector<std::string> rest = arguments;
  while (!rest.empty()) {
    if (!rest.front().starts_with("-")) {
      all.program.push_back(rest.front());
      rest.erase(rest.begin());
      continue;
    }
    const CommandLine line = split_command_line(app, rest);
    for (const std::string& option : line.options) all.add(option);
    rest = line.program;
  }
  return all;
}

// Before minutes are spent on measuring.
void require_writable(const std::string& flag, const std::string& path) {
  if (path.empty() || path == kStandardOutput) return;
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  const int error = errno;
  if (!file) throw UsageError(fmt::format("{}: '{}': {}", flag, path, std::strerror(error)));
}

void require_memory(const bench::SessionOptions& options) {
  const std::size_t needed = bench::bytes_needed(options), available = bench::bytes_available();
  if (needed > available) {
    fail(ErrorCode::kSystem,
         "{} with buffers of {} need {} of memory, but {} are free; choose smaller --sizes",
         counted(options.num_ranks, "rank"), size_text(options.sizes.back()), size_text(needed),
         size_text(available));
  }
}

void print_participants(const bench::Report& report) {
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

void measure(bench::Session& session) {
  bench::SessionEvents events;
  events.is_interrupted = [] { return signal_that_came != 0; };
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

// Whatever ends it, the files have what was measured until then.
int measure_and_write(const BenchOptions& options) {
  end_at_signals();
  bench::Session session(options.session);
  const bench::Report& report = session.report();
  print_participants(report);
  print_notes(report.notes);
  const std::size_t num_said = report.notes.size();
  try {
    measure(session);
  } catch (const Error&) {
    const auto notes = std::span(report.notes).subspan(num_said);
    print_notes(notes.first(notes.size() - 1));  // the last one is the error
    write_files(options, report);
    throw;
  }
  print_notes(std::span(report.notes).subspan(num_said));
  write_files(options, report);
  if (signal_that_came != 0) launch::end_by_signal(signal_that_came);
  return 0;
}

}  // namespace

int bench_command(const Arguments& arguments) {
  CLI::App app("Measures collectives on this machine, alone or side by side with other libraries.",
               "paceline bench");
  app.footer(kBenchExamples);
  auto formatter = std::make_shared<BenchFormatter>();
  formatter->column_width(34);
  app.formatter(formatter);
  app.get_help_ptr()->group("Help");
  OptionTable table(app, /*has_variables=*/false);
  BenchOptions options;
  declare_bench_options(table, options);
  const CommandLine line = split_around_operations(app, arguments);
  if (!table.take(line)) {
    fmt::print("{}", app.help());
    return 0;
  }
  check_bench_options(table, line.program, discover_topology().num_usable_cores(), options);
  require_place(table, options.mode, detect_launch_environment(), typed(arguments));
  options.session.command = typed(arguments);
  options.session.version = version_text();
  options.session.programs = contestants_folder();
  if (options.writes_to_output()) leave_output_to_files();
  require_writable("--json", options.json);
  if (options.mode != BenchMode::kMeasure) return plan_with_bench(options);
  require_writable("--csv", options.csv);
  require_writable("--html", options.html);
  require_memory(options.session);
  return measure_and_write(options);
}

}  // namespace paceline::apps
