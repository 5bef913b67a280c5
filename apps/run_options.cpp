#include "apps/run_options.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/collectives/backend_list.h"
#include "paceline/core/error.h"
#include "paceline/core/secret.h"

#include "apps/binding_option.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

using launch::ConsoleStreams;
using launch::LaunchOptions;

constexpr long kMaxLocalRanks = 4096;
constexpr long kMaxNodes = 65536;
constexpr long kMaxThreads = 4096;
constexpr double kMaxShutdownSeconds = 86400;
constexpr long kDefaultMasterPort = 29500;

class Checker {
 public:
  explicit Checker(const CommandLine& line) : line_(line) {}

  // Where the value of `flag` comes from, for messages.
  std::string source(const std::string& flag) const {
    if (line_.has(flag)) return flag;
    const std::string variable = variable_of(flag);
    const char* value = std::getenv(variable.c_str());
    if (value != nullptr && *value != '\0') return variable;
    for (const CommandLine::Default& one : line_.defaults) {
      if (one.name == flag) return one.source + ": " + flag.substr(2);
    }
    return flag;
  }

  [[noreturn]] void refuse(const std::string& flag, const std::string& text,
                           const std::string& allowed) const {
    throw UsageError(fmt::format("{}: '{}' is not {}", source(flag), text, allowed));
  }

  long integer(const std::string& flag, const std::string& text, long min, long max,
               const std::string& also = "") const {
    long value = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = status == std::errc() && stop == text.data() + text.size();
    if (!good || value < min || value > max) {
      refuse(flag, text, fmt::format("a whole number from {} to {}{}", min, max, also));
    }
    return value;
  }

  long integer_or(const std::string& flag, const std::string& text, long fallback, long min,
                  long max) const {
    return text.empty() ? fallback : integer(flag, text, min, max);
  }

 private:
  const CommandLine& line_;
};

int local_ranks(const Checker& checker, const std::string& text, const Topology& topology) {
  const std::string flag = "--nproc-per-node";
  if (text.empty()) return 1;
  if (text == "auto" || text == "cpu" || text == "cores") return launch::automatic_ranks(topology);
  if (text == "gpu" || text == "xpu") {
    throw UsageError(
        fmt::format("{}: '{}': this version computes on cpus only; use auto or a number",
                    checker.source(flag), text));
  }
  return static_cast<int>(checker.integer(flag, text, 1, kMaxLocalRanks, ", auto, cores or cpu"));
}

void check_nodes(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  if (texts.nnodes.find(':') != std::string::npos) {
    checker.refuse("--nnodes", texts.nnodes,
                   "a whole number (MIN:MAX, a job whose size changes, is not available yet)");
  }
  options.num_nodes =
      static_cast<int>(checker.integer_or("--nnodes", texts.nnodes, 1, 1, kMaxNodes));
  options.node_rank = static_cast<int>(
      checker.integer_or("--node-rank", texts.node_rank, 0, 0, options.num_nodes - 1));
  if (texts.standalone && options.num_nodes > 1) {
    throw UsageError(fmt::format("--standalone is for one node, but {} is {}",
                                 checker.source("--nnodes"), texts.nnodes));
  }
}

void check_address(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  // torchrun: --standalone wins over the rendezvous flags.
  const std::string port = texts.standalone ? "" : texts.master_port;
  if (!texts.master_addr.empty() && !texts.standalone) options.master_addr = texts.master_addr;
  const bool several = options.num_nodes > 1;
  // With several nodes the ranks' MASTER_PORT is the next one.
  options.master_port = static_cast<std::uint16_t>(checker.integer_or(
      "--master-port", port, several ? kDefaultMasterPort : 0, 1, several ? 65534 : 65535));
  options.run_id = texts.rdzv_id.empty() ? random_hex(8) : texts.rdzv_id;
}

ConsoleStreams streams_of(const Checker& checker, const std::string& all,
                          const std::string& digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') {
    checker.refuse("--tee", all, "0, 1 (stdout), 2 (stderr), 3 (both) or a list like 0:3,2:1");
  }
  const int mask = digit[0] - '0';
  return {(mask & 1) != 0, (mask & 2) != 0};
}

std::vector<ConsoleStreams> parse_tee(const Checker& checker, const std::string& text, int count) {
  if (text.find(':') == std::string::npos) {
    return std::vector<ConsoleStreams>(count, streams_of(checker, text, text));
  }
  std::vector<ConsoleStreams> chosen(count);
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto colon = item.find(':');
    const long rank = checker.integer("--tee", item.substr(0, colon), 0, count - 1);
    chosen[rank] =
        streams_of(checker, text, colon == std::string::npos ? "" : item.substr(colon + 1));
  }
  return chosen;
}

std::vector<bool> parse_filter(const Checker& checker, const std::string& text, int count) {
  std::vector<bool> wanted(count, false);
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    wanted[checker.integer("--local-ranks-filter", item, 0, count - 1)] = true;
  }
  return wanted;
}

// As typed, or empty. Whether a program has the backend, only the program knows.
std::string check_backend(const Checker& checker, const std::string& text) {
  if (text.empty()) return text;
  try {
    const BackendChoice choice = parse_backend_choice(text);
    if (choice.cpu == "mpi") {
      throw UsageError(fmt::format(
          "{}: mpi has a launcher of its own: mpirun -x PACELINE_BACKEND=mpi -np 2 PROGRAM",
          checker.source("--backend")));
    }
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", checker.source("--backend"), error.what()));
  }
  return text;
}

void choose_console(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  const int count = options.num_local_ranks;
  const bool everything = texts.all_ranks || !texts.local_ranks_filter.empty();
  options.console.assign(count, ConsoleStreams{everything, everything});
  if (!texts.tee.empty() && !texts.all_ranks) {
    options.console = parse_tee(checker, texts.tee, count);
  } else {
    options.show_rank_0 = !everything;
  }
  if (!texts.local_ranks_filter.empty()) {
    const auto wanted = parse_filter(checker, texts.local_ranks_filter, count);
    for (int i = 0; i < count; ++i) {
      if (!wanted[i]) options.console[i] = {};
    }
  }
  options.prefix_lines = everything || !texts.tee.empty();
}

std::chrono::nanoseconds parse_seconds(const Checker& checker, const std::string& flag,
                                       const std::string& text) {
  double seconds = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool good = status == std::errc() && stop == text.data() + text.size();
  if (!good || !(seconds >= 0 && seconds <= kMaxShutdownSeconds)) {
    checker.refuse(flag, text,
                   fmt::format("a number of seconds from 0 to {}", kMaxShutdownSeconds));
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

void choose_hang_watch(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  if (!texts.hang_timeout.empty()) {
    options.hang_timeout = parse_seconds(checker, "--hang-timeout", texts.hang_timeout);
  }
  if (!texts.straggler_after.empty()) {
    options.straggler_patience = parse_seconds(checker, "--straggler-after", texts.straggler_after);
  }
  if (texts.hang_action.empty() || texts.hang_action == "report") return;
  if (texts.hang_action != "kill") {
    checker.refuse("--hang-action", texts.hang_action, "report or kill");
  }
  options.kill_hanging = true;
}

launch::Binding choose_binding(const Checker& checker, const RunTexts& texts) {
  if (!texts.bind.empty() && !texts.numa_binding.empty()) {
    throw UsageError(fmt::format("{} and {} exclude each other", checker.source("--bind"),
                                 checker.source("--numa-binding")));
  }
  if (!texts.numa_binding.empty()) {
    const auto binding = parse_numa_binding(texts.numa_binding);
    if (binding) return *binding;
    checker.refuse("--numa-binding", texts.numa_binding, "node, socket, exclusive or core-complex");
  }
  if (texts.bind.empty()) return {};
  const auto binding = parse_binding(texts.bind);
  if (!binding) checker.refuse("--bind", texts.bind, kBindValues);
  return *binding;
}

}  // namespace

std::string source_of(const std::string& flag, const CommandLine& line) {
  return Checker(line).source(flag);
}

long check_integer(const CommandLine& line, const std::string& flag, const std::string& text,
                   long min, long max) {
  return Checker(line).integer(flag, text, min, max);
}

std::chrono::nanoseconds check_seconds(const CommandLine& line, const std::string& flag,
                                       const std::string& text) {
  return parse_seconds(Checker(line), flag, text);
}

std::string variable_of(const std::string& flag) {
  std::string name = "PET_" + flag.substr(2);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

namespace {

// Adds options of one group to the help.
class Group {
 public:
  Group(CLI::App& app, const char* name) : app_(app), name_(name) {}

  void value(const std::string& names, std::string& target, const char* type,
             const char* shown_default, const char* text) {
    const std::string flag = names.substr(names.find("--"));
    auto* option = app_.add_option(names, target, text)->envname(variable_of(flag));
    option->type_name(type)->group(name_);
    if (*shown_default != '\0') option->default_str(shown_default);
  }

  void flag(const std::string& name, bool& target, const char* text) {
    app_.add_flag(name, target, text)->envname(variable_of(name))->group(name_);
  }

 private:
  CLI::App& app_;
  const char* name_;
};

}  // namespace

void declare_rank_options(CLI::App& app, RunTexts& texts) {
  Group ranks(app, "Ranks");
  ranks.value("--nproc-per-node", texts.nproc_per_node, "N|auto", "1",
              "Ranks on this machine; auto: one per physical core");
  ranks.value("--backend", texts.backend, "NAME", "paceline",
              "What carries the collectives: paceline, gloo, or by device cpu:paceline,cuda:nccl");
  ranks.value("--threads-per-rank", texts.threads_per_rank, "T", "",
              "Computing threads of a rank [its cores]");
  ranks.value("--bind", texts.bind, "TO", "core",
              "core: cores of its own for each rank; cache, numa, socket: a whole one, shared if "
              "need be; none; or sets: 'map:0-3;4-7'");
  ranks.value("--numa-binding", texts.numa_binding, "TO", "",
              "torchrun's words for it: node, socket, exclusive, core-complex");
}

void declare_run_options(CLI::App& app, RunTexts& texts) {
  declare_rank_options(app, texts);
  Group(app, "Ranks")
      .flag("--report-bindings", texts.report_bindings, "Say which cores each rank got");

  Group machines(app, "Machines");
  machines.value("--hosts", texts.hosts, "LIST", "",
                 "Start on these hosts, through ssh: a:4,b:4 (4 ranks on each)");
  machines.value("--hostfile", texts.hostfile, "FILE", "",
                 "The same from a file, one host a line: a slots=4");
  machines.value("--ssh-command", texts.ssh_command, "CMD", "",
                 "How to reach a host [ssh with BatchMode]; gets HOST and one command");
  machines.value("--remote-paceline", texts.remote_paceline, "PATH", "",
                 "Where paceline is on the hosts [where it is here]");
  machines.value("--export", texts.export_names, "NAMES", "",
                 "Variables to set on the hosts, besides PACELINE_*, OMP_* and those of BLAS");
  machines.value("--start-timeout", texts.start_timeout, "S", "30",
                 "Seconds until every host has answered");
  machines.flag("--standalone", texts.standalone, "One machine, free ports (what happens anyway)");
  machines.value("--nnodes", texts.nnodes, "N", "1", "Machines of the job");
  machines.value("--node-rank", texts.node_rank, "R", "0", "Which of them this one is");
  machines.value("--master-addr", texts.master_addr, "A", "127.0.0.1", "Address of machine 0");
  machines.value("--master-port", texts.master_port, "P", "",
                 "Its port [one machine: a free one; several: 29500]");
  machines.flag("--encrypt", texts.encrypt, "Encrypt what the ranks send over TCP");
  machines.value("--rdzv-id", texts.rdzv_id, "ID", "", "Name of the job [random]");

  Group output(app, "Output");
  output.value("--log-dir", texts.log_dir, "DIR", "",
               "Keep each rank's output in DIR/rank-000.log ... [temporary, kept after a failure]");
  output.flag("--all-ranks", texts.all_ranks,
              "Show every rank, lines as \"[3] ...\" [rank 0 alone]");
  output.value("-t,--tee", texts.tee, "0-3", "",
               "Show 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,2:1");
  output.value("--local-ranks-filter", texts.local_ranks_filter, "LIST", "",
               "Show only these local ranks: 0,2");

  output.value("--timeline", texts.timeline, "FILE", "",
               "What every rank did when, on one clock: a trace for https://ui.perfetto.dev");

  Group stopping(app, "Stopping");
  stopping.value("--shutdown-timeout", texts.shutdown_timeout, "S", "10",
                 "Seconds from SIGTERM to SIGKILL (after a failure at most 5)");
  Group watching(app, "Watching");
  watching.value("--hang-timeout", texts.hang_timeout, "S", "30",
                 "Seconds without progress until it is said who is where; 0: never");
  watching.value("--hang-action", texts.hang_action, "DO", "report",
                 "report; or kill: also end the ranks that the others wait for");
  watching.value("--straggler-after", texts.straggler_after, "S", "30",
                 "Seconds for which a rank keeps the others waiting until it is said; 0: never");
  Group help(app, "Help");
  help.value("--config", texts.config, "FILE", "",
             "Options for every day, under [run] [paceline.toml, if there is one]");
  help.flag("--dry-run", texts.dry_run, "Say what would be started, start nothing");
  help.flag("--print-config", texts.print_config,
            "Say each option's value and where it comes from, start nothing");
}

launch::PlacementRequest check_rank_options(const RunTexts& texts, const CommandLine& line,
                                            const Topology& topology) {
  const Checker checker(line);
  launch::PlacementRequest request;
  request.num_local_ranks = local_ranks(checker, texts.nproc_per_node, topology);
  if (!texts.threads_per_rank.empty()) {
    request.threads_per_rank = static_cast<int>(
        checker.integer("--threads-per-rank", texts.threads_per_rank, 1, kMaxThreads));
  }
  request.binding = choose_binding(checker, texts);
  return request;
}

LaunchOptions check_run_options(const RunTexts& texts, const CommandLine& line,
                                const Topology& topology) {
  const Checker checker(line);
  LaunchOptions options;
  options.command = line.program;
  const launch::PlacementRequest ranks = check_rank_options(texts, line, topology);
  options.num_local_ranks = ranks.num_local_ranks;
  options.threads_per_rank = ranks.threads_per_rank;
  options.binding = ranks.binding;
  check_nodes(checker, texts, options);
  check_address(checker, texts, options);
  options.backend = check_backend(checker, texts.backend);
  options.encrypt = texts.encrypt;
  options.report_bindings = texts.report_bindings || isatty(STDERR_FILENO) == 1;
  options.log_dir = texts.log_dir;
  options.timeline = texts.timeline;
  choose_console(checker, texts, options);
  options.terminal = isatty(STDOUT_FILENO) == 1;
  if (!texts.shutdown_timeout.empty()) {
    options.shutdown_timeout = parse_seconds(checker, "--shutdown-timeout", texts.shutdown_timeout);
  }
  choose_hang_watch(checker, texts, options);
  if (options.command.empty()) {
    throw UsageError("no program given: paceline run [options] PROGRAM [arguments]");
  }
  return options;
}

}  // namespace paceline::apps
