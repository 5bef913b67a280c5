#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/process/process.h"

#include "apps/bench/call_session.h"
#include "apps/bench/catalog.h"
#include "apps/bench/command/bench_command.h"
#include "apps/bench/command/bench_options.h"
#include "apps/cli/option_table.h"
#include "apps/cli/option_value.h"
#include "apps/cli/own_program.h"

namespace paceline::apps {

namespace {

constexpr long kMaxSpinUs = 1000'000;

constexpr const char* kCallExamples = R"(
A caller and a callee, each a process; every library is a program of its own, and they take turns.
Up to 4K the reply has as many bytes as the request. Larger messages get a short reply, and only
blocking calls are measured; beside them memcpy.

Measures: blocking (one caller), pipelined (256 calls under way), one_way (no replies), callers (16,
16 of whose calls 1 % sleep 5 ms, 1,000).

Examples:
  paceline bench rpc --peer socket
  paceline bench rpc --sizes 64,1M --peer socket,grpc,capnp,torch --json FILE
  paceline bench rpc --peer all --busy
  paceline bench rpc --measure blocking --transport unix --spin 50 --peer socket
  paceline bench rpc --peer torch --python ENV/bin/python

Ctrl-C ends the measurement and writes what there is.)";

struct CallFormatter : CLI::Formatter {
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: paceline bench rpc [options]\n";
  }
};

// The items of a list, each the name of a value of `all`.
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
    if (size >= bench::kLeastCallBytes && size <= bench::kMostCallBytes) continue;
    throw UsageError(fmt::format("{}: {}: a message has {} to {} here", option.source,
                                 size_text(size), size_text(bench::kLeastCallBytes),
                                 size_text(bench::kMostCallBytes)));
  }
}

void read_peers(const Option& option, std::vector<std::string>& peers) {
  std::vector<std::string> names = bench::peer_names(bench::Subject::kCalls);
  for (const std::string& item : items_of(option.text)) {
    if (item == "all") {
      for (const std::string& name : names) add_once(peers, name);
    } else if (std::find(names.begin(), names.end(), item) != names.end()) {
      add_once(peers, item);
    } else if (item != "memcpy") {
      names.insert(names.end(), {"all", "memcpy"});
      refuse_value(option.source, item, one_of(names, item));
    }
  }
  add_once<std::string>(peers, "memcpy");
}

// Found now, because a turn is a bad place to fail.
void read_python(const Option& option, std::string& python) {
  const char* path = std::getenv("PATH");
  try {
    python = launcher::find_program(option.text, path != nullptr ? path : "");
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
  table.value("--peer", "LIST",
              "Measure beside: socket,grpc,capnp,torch or all; memcpy comes along",
              {.read = [&](const Option& option) { read_peers(option, session.peers); }});
  table.value("--python", "PYTHON", "Python that has torch [the system's]",
              {.read = [&](const Option& option) { read_python(option, session.python); }});
  table.group("How");
  table.flag("--busy", "Keep all cores computing meanwhile", bool_target(session.busy));
  table.value("--spin", "US",
              "Microseconds for which Paceline's workers look before they sleep [0]",
              {.read = [&](const Option& option) {
                session.spin = std::chrono::microseconds(option.number(0, kMaxSpinUs));
              }});
  table.value("--rounds", "N", "Rounds; in each every library has one turn",
              number_target(session.rounds, 1, kMaxBenchRounds));
  table.value("--timeout", "S", "Seconds after which a turn has failed",
              {.read =
                   [&](const Option& option) {
                     session.turn_limit = std::chrono::seconds(option.number(1, kMaxBenchSeconds));
                   },
               .print = [&] { return std::to_string(session.turn_limit.count()); }});
  table.group("Output");
  table.value("--json", "FILE", "All results, for programs; -: standard output", text_target(json));
}

void require_no_launcher(const std::string& command) {
  const LaunchEnvironment who = detect_launch_environment();
  if (who.world_size == 1) return;
  throw UsageError(
      fmt::format("this process is rank {} of {}, and bench starts workers of its own: type it "
                  "without the launcher: {}",
                  who.rank, who.world_size, command));
}

}  // namespace

int bench_calls_command(const Arguments& arguments) {
  CLI::App app("Measures calls between workers, alone or side by side with other libraries.",
               "paceline bench rpc");
  app.footer(kCallExamples);
  auto formatter = std::make_shared<CallFormatter>();
  formatter->column_width(34);
  app.formatter(formatter);
  app.get_help_ptr()->group("Help");
  OptionTable table(app, /*has_variables=*/false);
  bench::CallSessionOptions session;
  std::string json;
  declare_call_options(table, session, json);
  if (!table.read_line({std::next(arguments.begin()), arguments.end()}, 0)) return 0;
  session.command = bench_command_text(arguments);
  session.version = version_text();
  session.programs = contestants_folder();
  require_no_launcher(session.command);
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
