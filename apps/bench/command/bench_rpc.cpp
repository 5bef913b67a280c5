// `paceline bench rpc`: its options, and a session of calls.

#include <algorithm>
#include <cstdio>
#include <iterator>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/process/program_file.h"

#include "apps/bench/call_session.h"
#include "apps/bench/catalog.h"
#include "apps/bench/command/bench_command.h"
#include "apps/bench/command/bench_options.h"
#include "apps/bench/contestant/call_contestant.h"
#include "apps/cli/option_table.h"
#include "apps/cli/option_value.h"
#include "apps/cli/own_program.h"

namespace paceline::apps {

namespace {

constexpr long kMaxSpinUs = 1000'000;

constexpr const char* kCallExamples = R"(
A caller and a callee, each a process; every library is a program of its own, and they take turns.
Up to 4K the reply has as many bytes as the request. Larger messages get a short reply, and only
blocking calls are measured, with memcpy for comparison.

Measures: blocking (one caller), pipelined (256 calls under way), one_way (no replies), callers (16;
16 with 1 % of their calls sleeping 5 ms; 1,000).

Examples:
  paceline bench rpc --peer socket
  paceline bench rpc --sizes 64,1M --peer socket,grpc,capnp,torch --json FILE
  paceline bench rpc --peer all --busy
  paceline bench rpc --measure blocking --transport unix --spin 50 --peer socket
  paceline bench rpc --peer torch --python ENV/bin/python

Ctrl-C ends the measurement and writes the results so far.)";

// Reads a list whose items are names of values in `all`.
template <class Value, class All>
OptionTarget list_target(std::vector<Value>& list, const All& all) {
  return {.read = [&](const Option& option) {
    list.clear();
    for (const std::string& item : items_of(option.text)) {
      const auto known = std::find_if(std::begin(all), std::end(all),
                                      [&](const Value value) { return name_of(value) == item; });
      if (known == std::end(all)) {
        std::vector<std::string> names;
        for (const Value value : all) names.emplace_back(name_of(value));
        refuse_value(option.source, item, one_of(names, item));
      }
      add_once(list, *known);
    }
  }};
}

void read_call_sizes(const Option& option, std::vector<std::size_t>& sizes) {
  read_sizes(option, sizes);
  for (const std::size_t size : sizes) {
    if (size >= bench::kMinCallBytes && size <= bench::kMaxCallBytes) continue;
    throw UsageError(fmt::format("{}: {}: a message has {} to {} here", option.source,
                                 size_text(size), size_text(bench::kMinCallBytes),
                                 size_text(bench::kMaxCallBytes)));
  }
}

// Looks for the program now, so that a missing program is reported before the measurement.
void read_python(const Option& option, std::string& python) {
  try {
    python = launcher::find_program(option.text);
  } catch (const launcher::ProgramError& error) {
    throw UsageError(fmt::format("{}: {}", option.source, error.what()));
  }
}

void declare_call_options(OptionTable& table, bench::CallSessionOptions& session,
                          std::string& json) {
  table.group("What");
  table
      .value("--sizes", "LIST", "Bytes: 64,4K,1M; ranges 64:1M (times 4)",
             {.read = [&](const Option& option) { read_call_sizes(option, session.sizes); }})
      .declared->default_str("64,1M");
  table
      .value("--transport", "LIST", "unix (one host, with shared memory), tcp",
             list_target(session.ways, bench::kAllCallWays))
      .declared->default_str("unix,tcp");
  table
      .value("--measure", "LIST", "What to measure; see below",
             list_target(session.measures, bench::kAllCallMeasures))
      .declared->default_str("blocking,pipelined,one_way,callers");
  table.group("Libraries to compare with");
  table.value("--peer", "LIST", "Compare with socket,grpc,capnp,torch or all; adds memcpy",
              {.read = [&](const Option& option) {
                session.peers = read_peers(option, bench::Subject::kCalls, {"memcpy"});
                session.peers.emplace_back("memcpy");
              }});
  table.value("--python", "PYTHON", "Python that has torch [the system's]",
              {.read = [&](const Option& option) { read_python(option, session.python); }});
  table.group("How");
  table.flag("--busy", "Keep all cores busy during the measurement", bool_target(session.busy));
  table.value("--spin", "US", "Microseconds that Paceline's workers spin before they sleep [0]",
              {.read = [&](const Option& option) {
                session.variables[bench::kSpinVariable] =
                    std::to_string(option.number(0, kMaxSpinUs));
              }});
  declare_rounds(table, session);
  declare_turn_limit(table, session);
  table.group("Output");
  declare_json(table, json);
}

}  // namespace

int bench_calls_command(const Arguments& arguments) {
  CLI::App app("Measures calls between workers, alone or side by side with other libraries.",
               "paceline bench rpc");
  app.footer(kCallExamples);
  set_usage(app, "Usage: paceline bench rpc [options]\n");
  OptionTable table(app, /*has_variables=*/false);
  bench::CallSessionOptions session;
  session.variables[bench::kSpinVariable] = "0";
  std::string json;
  declare_call_options(table, session, json);
  if (!table.read_line({std::next(arguments.begin()), arguments.end()}, 0)) return 0;
  session.command = "paceline bench " + shell_line(arguments);
  session.version = version_text();
  session.programs = contestants_folder();
  require_no_launcher(detect_launch_environment(), "workers", session.command);
  if (json == kStandardOutput) leave_output_to_files();
  require_writable("--json", json);

  end_bench_at_signals();
  bench::CallSession running(session);
  const bench::CallReport& report = running.report();
  bench::CallSessionEvents events;
  events.is_interrupted = bench_was_interrupted;
  events.on_rows = [&](const std::vector<bench::CallRow>& rows) {
    fmt::print("{}\n", bench::table_of(rows, report.busy));
    std::fflush(stdout);
  };
  return measure_and_write(
      report, [&] { running.run(events); },
      [&] { write_bench_file(json, bench::to_json(report)); });
}

}  // namespace paceline::apps
