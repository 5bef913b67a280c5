#include "apps/run_options.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/collectives/backends/backend_list.h"
#include "paceline/collectives/backends/library_list.h"
#include "paceline/core/error.h"
#include "paceline/core/secret.h"
#include "paceline/core/terminal.h"

#include "apps/binding_option.h"
#include "apps/meeting_options.h"
#include "apps/option_checker.h"
#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

using launch::ConsoleStreams;
using launch::LaunchOptions;

constexpr long kMaxLocalRanks = 4096;
constexpr long kMaxThreads = 4096;
constexpr double kMaxSeconds = 86400;

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

ConsoleStreams streams_of(const Checker& checker, const std::string& flag, const std::string& all,
                          const std::string& digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') {
    checker.refuse(flag, all, "0, 1 (stdout), 2 (stderr), 3 (both) or a list like 0:3,2:1");
  }
  const int mask = digit[0] - '0';
  return {(mask & 1) != 0, (mask & 2) != 0};
}

// One entry for each local rank.
std::vector<ConsoleStreams> parse_streams(const Checker& checker, const std::string& flag,
                                          const std::string& text, int count) {
  if (text.find(':') == std::string::npos) {
    return std::vector<ConsoleStreams>(count, streams_of(checker, flag, text, text));
  }
  std::vector<ConsoleStreams> chosen(count);
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto colon = item.find(':');
    const long rank = checker.integer(flag, item.substr(0, colon), 0, count - 1);
    chosen[rank] =
        streams_of(checker, flag, text, colon == std::string::npos ? "" : item.substr(colon + 1));
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

// As typed, or empty. Whether a program has the backend, only the program knows: c10d is in those
// with tensors, and not in this command.
std::string check_backend(const Checker& checker, const std::string& text) {
  if (text.empty()) return text;
  try {
    static std::once_flag once;
    std::call_once(once, [] {
      register_library({.info = {.name = "c10d", .text = "LibTorch's, in programs with tensors"}});
    });
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
    options.console = parse_streams(checker, "--tee", texts.tee, count);
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
  if (texts.redirects.empty()) return;
  options.redirected = parse_streams(checker, "--redirects", texts.redirects, count);
  if (texts.tee.empty()) return;
  const auto shown = parse_streams(checker, "--tee", texts.tee, count);
  for (int i = 0; i < count; ++i) {  // what is teed goes both ways
    if (shown[i].out) options.redirected[i].out = false;
    if (shown[i].err) options.redirected[i].err = false;
  }
}

void choose_hang_watch(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  if (!texts.hang_timeout.empty()) {
    options.hang_timeout = checker.seconds("--hang-timeout", texts.hang_timeout, kMaxSeconds);
  }
  if (!texts.straggler_after.empty()) {
    options.straggler_patience =
        checker.seconds("--straggler-after", texts.straggler_after, kMaxSeconds);
  }
  if (texts.hang_action.empty() || texts.hang_action == "report") return;
  if (texts.hang_action != "kill") {
    checker.refuse("--hang-action", texts.hang_action, "report or kill");
  }
  if (options.hang_timeout.count() == 0) {
    throw UsageError(fmt::format("{} and {} exclude each other: with 0 nothing is watched",
                                 checker.source("--hang-action"),
                                 checker.source("--hang-timeout")));
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

std::string most_nodes(const std::string& nnodes) {
  return nnodes.substr(nnodes.find(':') + 1);  // npos + 1 is 0
}

std::string source_of(const std::string& flag, const CommandLine& line) {
  return Checker(line).source(flag);
}

long check_integer(const CommandLine& line, const std::string& flag, const std::string& text,
                   long min, long max) {
  return Checker(line).integer(flag, text, min, max);
}

std::chrono::nanoseconds check_seconds(const CommandLine& line, const std::string& flag,
                                       const std::string& text) {
  return Checker(line).seconds(flag, text, kMaxSeconds);
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
  ranks.value(
      "--backend", texts.backend, "NAME", "paceline",
      "What carries the collectives: paceline, gloo, c10d, or by device cpu:paceline,cuda:nccl");
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
  Group ranks(app, "Ranks");
  ranks.flag("--report-bindings", texts.report_bindings, "Say which cores each rank got");
  ranks.flag("--no-python", texts.no_python,
             "As torchrun's, without effect: every program is started as it is");

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
  machines.value("--host-retries", texts.host_retries, "N", "20",
                 "How often a lost host of a job that may go on is started again; 0: never");
  machines.flag("--standalone", texts.standalone, "One machine, free ports (what happens anyway)");
  machines.value("--nnodes", texts.nnodes, "N|MIN:MAX", "1",
                 "Machines of the job; MIN:MAX: it goes on while MIN are there");
  machines.value("--node-rank", texts.node_rank, "R", "",
                 "Which of them this one is [as they come]");
  machines.value("--master-addr", texts.master_addr, "A", "127.0.0.1", "Address of machine 0");
  machines.value("--master-port", texts.master_port, "P", "",
                 "Its port [one machine: a free one; several: 29500]");
  machines.flag("--encrypt", texts.encrypt, "Encrypt what the ranks send over TCP");
  machines.value("--rdzv-endpoint", texts.rdzv_endpoint, "HOST:PORT", "",
                 "Where the machines meet [master-addr:master-port]");
  machines.value("--rdzv-id", texts.rdzv_id, "ID", "",
                 "Name of the job [random; where agents are started by hand: none]");
  machines.value("--role", texts.role, "NAME", "default", "The ranks' ROLE_NAME");
  machines.value("--rdzv-backend", texts.rdzv_backend, "NAME", "paceline",
                 "paceline; c10d and static mean the same here");
  machines.value("--rdzv-conf", texts.rdzv_conf, "K=V,...", "",
                 "join_timeout=600, last_call_timeout=3, keep_alive_interval=0.5, "
                 "keep_alive_max_attempt=6, is_host");

  Group surviving(app, "Surviving");
  surviving.value("--max-restarts", texts.max_restarts, "N", "0",
                  "Start all ranks again after a failure, up to N times within the window");
  surviving.value("--restart-window", texts.restart_window, "S", "3600",
                  "Restarts longer ago do not count; 0: all do");
  surviving.value("--fork-server", texts.fork_server, "on|off", "on",
                  "Start ranks again from a process that has loaded the program; off: execute it");
  surviving.value("--monitor-interval", texts.monitor_interval, "S", "",
                  "As torchrun's, without effect: failures are noticed at once");
  surviving.value("--chaos", texts.chaos, "FAULTS", "",
                  "Kill, stop, slow ranks on purpose: kill:rate=1/15s,stop:rank=1@30s,slow:rank=0");
  surviving.value("--chaos-seed", texts.chaos_seed, "N", "0", "Decides the moments and the ranks");

  Group output(app, "Output");
  output.value("--log-dir", texts.log_dir, "DIR", "",
               "Keep each rank's output in DIR/rank-000.log ... [temporary, kept after a failure]");
  output.flag("--all-ranks", texts.all_ranks,
              "Show every rank, lines as \"[3] ...\" [rank 0 alone]");
  output.value("-t,--tee", texts.tee, "0-3", "",
               "Show 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,2:1");
  output.value("-r,--redirects", texts.redirects, "0-3", "",
               "Keep 1 stdout, 2 stderr, 3 both in the log alone; or by local rank");
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
  check_meeting(checker, texts, options);
  check_restarts(checker, texts, options);
  check_chaos(checker, texts, options);
  options.backend = check_backend(checker, texts.backend);
  options.encrypt = texts.encrypt;
  options.report_bindings = texts.report_bindings || isatty(STDERR_FILENO) == 1;
  options.log_dir = texts.log_dir;
  options.timeline = texts.timeline;
  choose_console(checker, texts, options);
  if (!texts.role.empty()) options.role = texts.role;
  options.terminal = can_draw_on(STDOUT_FILENO);
  if (!texts.shutdown_timeout.empty()) {
    options.shutdown_timeout =
        checker.seconds("--shutdown-timeout", texts.shutdown_timeout, kMaxSeconds);
  }
  choose_hang_watch(checker, texts, options);
  if (!texts.start_timeout.empty()) {
    checker.seconds("--start-timeout", texts.start_timeout, kMaxSeconds);
  }
  if (options.command.empty()) {
    throw UsageError("no program given: paceline run [options] PROGRAM [arguments]");
  }
  return options;
}

}  // namespace paceline::apps
