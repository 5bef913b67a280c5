#include "apps/run/run_options.h"

#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/logical_shards.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/placement/gpus.h"

#include "apps/cli/option_value.h"
#include "apps/run/meeting_options.h"
#include "apps/run/rank_options.h"

namespace paceline::apps {

namespace {

using launcher::Binding;
using launcher::ConsoleStreams;
using launcher::LaunchOptions;

constexpr int kAutomaticRanks = 0;
constexpr int kRankForEachGpu = -1;
constexpr long kMaxHostRetries = 1'000'000;
constexpr double kMaxSeconds = 86400;

OptionTarget local_ranks_target(int& count) {
  OptionTarget target = number_target(count, 1, kMaxLocalRanks);
  target.read = [&count](const Option& option) {
    const std::string& text = option.text;
    if (text == "auto" || text == "cpu" || text == "cores") {
      count = kAutomaticRanks;
      return;
    }
    if (text == "gpu") {
      count = kRankForEachGpu;
      return;
    }
    if (text == "xpu") {
      throw UsageError(
          fmt::format("{}: '{}': this version knows NVIDIA's GPUs only; use gpu, auto or a number",
                      option.source, text));
    }
    count = static_cast<int>(
        whole_number(option.source, text, 1, kMaxLocalRanks, ", auto, cores, cpu or gpu"));
  };
  return target;
}

OptionTarget threads_target(std::optional<int>& threads) {
  return {.read = [&threads](const Option& option) {
    threads = static_cast<int>(option.number(1, kMaxThreads));
  }};
}

// Checks the name only. This command cannot know whether the program has the backend: for example,
// only programs with tensors have c10d.
void check_backend(const Option& option) {
  try {
    [[maybe_unused]] static const bool is_known =
        (register_library(
             {.info = {.name = "c10d", .text = "LibTorch's, in programs with tensors"}}),
         true);
    const BackendChoice choice = parse_backend_choice(option.text);
    if (choice.cpu == "mpi") {
      throw UsageError(fmt::format(
          "{}: mpi has a launcher of its own: mpirun -x PACELINE_BACKEND=mpi -np 2 PROGRAM",
          option.source));
    }
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", option.source, error.what()));
  }
}

OptionTarget backend_target(std::string& backend) {
  return {.read =
              [&backend](const Option& option) {
                check_backend(option);
                backend = option.text;
              },
          .print = [&backend] { return backend.empty() ? "paceline" : backend; }};
}

using BindingParser = std::optional<Binding> (*)(const std::string&);

OptionTarget binding_target(Binding& binding, BindingParser parse, const char* allowed) {
  return {.read = [&binding, parse, allowed](const Option& option) {
    const auto parsed = parse(option.text);
    if (!parsed) option.refuse(allowed);
    binding = *parsed;
  }};
}

ConsoleStreams streams_of(const Option& option, const std::string& digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') {
    option.refuse("0, 1 (stdout), 2 (stderr), 3 (both) or a list like 0:3,2:1");
  }
  const int mask = digit[0] - '0';
  return {(mask & 1) != 0, (mask & 2) != 0};
}

// Returns one entry for each local rank.
std::vector<ConsoleStreams> parse_streams(const Option& option, int count) {
  if (option.text.find(':') == std::string::npos) {
    return std::vector<ConsoleStreams>(count, streams_of(option, option.text));
  }
  std::vector<ConsoleStreams> chosen(count);
  for (const std::string& item : items_of(option.text)) {
    const auto colon = item.find(':');
    const long rank = whole_number(option.source, item.substr(0, colon), 0, count - 1);
    chosen[rank] = streams_of(option, colon == std::string::npos ? "" : item.substr(colon + 1));
  }
  return chosen;
}

std::vector<bool> parse_filter(const Option& option, int count) {
  std::vector<bool> wanted(count, false);
  for (const std::string& item : items_of(option.text)) {
    wanted[whole_number(option.source, item, 0, count - 1)] = true;
  }
  return wanted;
}

void choose_console(const OptionTable& table, LaunchOptions& launch) {
  const int count = launch.num_local_ranks;
  const bool all_ranks = table["--all-ranks"].given();
  const Option& tee = table["--tee"];
  const Option& filter = table["--local-ranks-filter"];
  const Option& redirects = table["--redirects"];
  const bool everything = all_ranks || filter.given();
  launch.console.assign(count, ConsoleStreams{everything, everything});
  if (tee.given() && !all_ranks) {
    launch.console = parse_streams(tee, count);
  } else {
    launch.show_rank_0 = !everything;
  }
  if (filter.given()) {
    const auto wanted = parse_filter(filter, count);
    for (int i = 0; i < count; ++i) {
      if (!wanted[i]) launch.console[i] = {};
    }
  }
  launch.prefix_lines = everything || tee.given();
  if (!redirects.given()) return;
  launch.redirected = parse_streams(redirects, count);
  if (!tee.given()) return;
  const auto shown = parse_streams(tee, count);
  for (int i = 0; i < count; ++i) {  // a stream that --tee shows is not only in the log
    if (shown[i].out) launch.redirected[i].out = false;
    if (shown[i].err) launch.redirected[i].err = false;
  }
}

// Checks whether ranks can divide the shards, as far as the number of ranks is known here; with
// several hosts the coordinator checks again. Sets one thread per rank if the user has set no
// number of threads.
void check_logical_shards(const OptionTable& table, LaunchOptions& launch) {
  if (launch.logical_shards == 0) return;
  const char* const chosen = std::getenv("OMP_NUM_THREADS");
  if (!launch.threads_per_rank && (chosen == nullptr || *chosen == '\0'))
    launch.threads_per_rank = 1;
  if (table["--hosts"].given() || table["--hostfile"].given() || launch.part) return;
  for (int nodes = launch.min_nodes; nodes <= launch.num_nodes; ++nodes) {
    if (shards_fit(launch.logical_shards, std::int64_t{nodes} * launch.num_local_ranks)) return;
  }
  throw UsageError(
      fmt::format("--logical-shards {}: {} ranks cannot have 1, 2, 4, 8, ... shards each; start {}",
                  launch.logical_shards, launch.num_nodes * launch.num_local_ranks,
                  ranks_that_fit(launch.logical_shards)));
}

void refuse_both(const Option& one, const Option& other, const char* why = "") {
  if (!one.given() || !other.given()) return;
  throw UsageError(fmt::format("{} and {} exclude each other{}", one.source, other.source, why));
}

}  // namespace

void declare_rank_options(OptionTable& table, LaunchOptions& launch) {
  table.group("Ranks");
  table.value("--nproc-per-node", "N|auto|gpu",
              "Ranks on this machine; auto: one per physical core; gpu: one per visible GPU",
              local_ranks_target(launch.num_local_ranks), kDecidedHere);
  table.value(
      "--backend", "NAME",
      "Library for the collectives: paceline, gloo, c10d, or by device cpu:paceline,cuda:nccl",
      backend_target(launch.backend));
  table.value("--threads-per-rank", "T", "Computing threads of a rank [its cores]",
              threads_target(launch.threads_per_rank));
  OptionTarget bind = binding_target(launch.binding, parse_binding, kBindValues);
  bind.print = [&launch] { return format_binding(launch.binding); };
  table.value("--bind", "TO",
              "core: cores of its own for each rank; cache, numa, socket: a whole one, shared if "
              "necessary; none; or sets: 'map:0-3;4-7'",
              bind);
  table.value("--numa-binding", "TO",
              "torchrun's form of --bind: node, socket, exclusive, core-complex",
              binding_target(launch.binding, parse_numa_binding,
                             "node, socket, exclusive or core-complex"));
}

void declare_run_options(OptionTable& table, RunOptions& run) {
  LaunchOptions& launch = run.launch;
  declare_rank_options(table, launch);
  launch.logical_shards = job_logical_shards();
  table.value("--logical-shards", "L",
              "Shards of every step, for bitwise equal results on any number of ranks that have 1, "
              "2, 4, 8, ... shards each; 0: none",
              number_target(launch.logical_shards, 0, kMaxLogicalShards));
  declare_roles_options(table, launch);
  table.flag("--report-bindings", "Report the cores of each rank",
             bool_target(launch.report_bindings), kNotSubmitted);
  table.flag("--no-python",
             "Accepted as in torchrun, without effect: every program is started as it is");

  table.group("Machines");
  constexpr unsigned kHosts = kDecidedHere | kNotSubmitted;
  table.value("--hosts", "LIST", "Start on these hosts, through ssh: a:4,b:4 (4 ranks on each)", {},
              kHosts);
  table.value("--hostfile", "FILE", "Start on the hosts of this file, one per line: a slots=4", {},
              kHosts);
  table.value("--ssh-command", "CMD",
              "Command to reach a host [ssh with BatchMode]; gets HOST and one command", {},
              kHosts | kOfHosts);
  table.value("--remote-paceline", "PATH", "Path of paceline on the hosts [as here]",
              text_target(run.remote_paceline), kDecidedHere | kOfHosts);
  table.value("--export", "NAMES",
              "Variables to set on the hosts, besides PACELINE_*, OMP_* and those of BLAS", {},
              kHosts | kOfHosts);
  table.value("--start-timeout", "S", "Seconds until every host has answered",
              seconds_target(run.start_timeout, kMaxSeconds), kHosts | kOfHosts);
  table.value("--host-retries", "N", "Times to restart a lost host; 0: never",
              number_target(run.host_retries, 0, kMaxHostRetries), kHosts | kOfHosts);
  declare_meeting_options(table, run);

  table.group("Output");
  table.value("--log-dir", "DIR",
              "Keep each rank's output in DIR/rank-000.log ... [temporary, kept after a failure]",
              text_target(launch.log_dir, "temporary"));
  table.flag("--all-ranks", "Show every rank, lines as \"[3] ...\" [only rank 0]");
  table.value("-t,--tee", "0-3", "Show 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,2:1",
              {.unset = "rank 0"});
  table.value("-r,--redirects", "0-3",
              "Keep 1 stdout, 2 stderr, 3 both only in the log; or by local rank", {});
  table.value("--local-ranks-filter", "LIST", "Show only these local ranks: 0,2",
              {.unset = "all that are shown"});
  table.value("--timeline", "FILE",
              "Write a trace of all ranks, on one clock, for https://ui.perfetto.dev",
              text_target(launch.timeline));

  table.group("Stopping");
  table.value("--shutdown-timeout", "S",
              "Seconds from SIGTERM to SIGKILL (after a failure at most 5)",
              seconds_target(launch.shutdown_timeout, kMaxSeconds));
  table.group("Watching");
  table.value("--hang-timeout", "S",
              "Seconds without progress before reporting where each rank is; 0: never",
              seconds_target(launch.hang_timeout, kMaxSeconds));
  table.value("--hang-action", "DO", "report; or kill: also end the ranks that the others wait for",
              word_target(launch.kill_hanging, {{"report", false}, {"kill", true}}));
  table.value("--straggler-after", "S",
              "Seconds that a rank may delay the others before it is reported; 0: never",
              seconds_target(launch.straggler_patience, kMaxSeconds));
  table.group("Help");
  table.value("--config", "FILE",
              "Default options, from the section of this command [paceline.toml, if there is one]",
              {}, kDecidedHere);
  table.flag("--dry-run", "Print the processes that would be started; start nothing",
             bool_target(run.dry_run), kDecidedHere);
  table.flag("--print-config", "Print each option's value and its origin; start nothing",
             bool_target(run.print_config), kDecidedHere | kNotSubmitted);
}

namespace {

// Sets one rank for each visible GPU, bound near it unless the user has chosen a binding.
void start_a_rank_for_each_gpu(const OptionTable& table, const Topology& topology,
                               LaunchOptions& launch) {
  const Option& option = table["--nproc-per-node"];
  const auto gpus =
      launcher::visible_gpus(launcher::find_gpus(), process_environment()("CUDA_VISIBLE_DEVICES"));
  if (gpus.empty()) {
    throw UsageError(fmt::format(
        "{}: '{}': no GPU was found: check CUDA_VISIBLE_DEVICES, start a container with "
        "--gpus all, or give a number",
        option.source, option.text));
  }
  launch.num_local_ranks = static_cast<int>(gpus.size());
  if (table["--bind"].given() || table["--numa-binding"].given()) return;
  if (const auto near = launcher::binding_near_gpus(topology, gpus)) launch.binding = *near;
}

}  // namespace

void check_rank_options(const OptionTable& table, const Topology& topology, LaunchOptions& launch) {
  refuse_both(table["--bind"], table["--numa-binding"]);
  if (launch.num_local_ranks == kAutomaticRanks) {
    launch.num_local_ranks = launcher::automatic_ranks(topology);
  } else if (launch.num_local_ranks == kRankForEachGpu) {
    start_a_rank_for_each_gpu(table, topology, launch);
  }
}

void check_run_options(const OptionTable& table, const Topology& topology, LaunchOptions& launch,
                       std::optional<int> world_size) {
  check_rank_options(table, topology, launch);
  check_roles(table, launch, world_size);
  check_meeting(table, launch);
  check_chaos(table, launch);
  check_logical_shards(table, launch);
  launch.report_bindings |= isatty(STDERR_FILENO) == 1;
  launch.terminal = can_draw_on(STDOUT_FILENO);
  choose_console(table, launch);
  if (launch.kill_hanging && launch.hang_timeout.count() == 0) {
    refuse_both(table["--hang-action"], table["--hang-timeout"],
                ": 0 disables the detection of hangs");
  }
  if (launch.command.empty()) {
    throw UsageError("no program given: paceline run [options] PROGRAM [arguments]");
  }
}

}  // namespace paceline::apps
