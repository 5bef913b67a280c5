// Checks which options of `paceline bench` have an effect in which mode, and refuses combinations
// that are not possible.

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/transport/wire.h"

#include "apps/bench/command/bench_options.h"
#include "apps/bench/contestant/pattern.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

const char* flag_of(BenchMode mode) {
  switch (mode) {
    case BenchMode::kCalibrate:
      return "--calibrate";
    case BenchMode::kSimulate:
      return "--simulate";
    case BenchMode::kPredict:
      return "--predict";
    case BenchMode::kExplain:
      return "--explain";
    case BenchMode::kMeasure:
      break;
  }
  return "a measurement";
}

std::string starter_of(const LaunchEnvironment& environment) {
  if (environment.launcher == "paceline") return "paceline run";
  if (environment.launcher == "openmpi") return "mpirun";
  if (environment.launcher == "pmi") return "mpiexec";
  if (environment.launcher == "slurm") return "srun";
  return environment.launcher == "env" ? "RANK and WORLD_SIZE in the environment"
                                       : environment.launcher;
}

std::vector<std::string_view> algorithms_for(Op op) {
  std::vector<std::string_view> names;
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (serves(algorithm, op)) names.push_back(name_of(algorithm));
  }
  return names;
}

// Whether there may be several hosts with several ranks each; false only if this is known to be
// impossible before the ranks start.
bool has_hierarchy(const BenchOptions& options) {
  if (options.mode == BenchMode::kMeasure) return false;
  if (options.mode != BenchMode::kSimulate) return true;  // known only once the group exists
  return options.cluster.hosts > 1 && options.cluster.ranks > 1 &&
         options.transport != TransportKind::kTcp;
}

}  // namespace

BenchMode mode_of(const OptionTable& table) {
  if (table["--calibrate"].given()) return kCalibrate;
  if (table["--simulate"].given()) return kSimulate;
  if (table["--predict"].given()) return kPredict;
  return table["--explain"].given() ? kExplain : kMeasure;
}

void require_effect(const OptionTable& table, const std::vector<std::string>& words,
                    BenchMode mode) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(fmt::format("{} has no effect with {}", what, flag_of(mode)));
  };
  if (!words.empty() && mode == kCalibrate) refuse("an operation");
  for (const Option& option : table.options()) {
    if (option.given() && (option.traits & mode) == 0) refuse(option.name);
  }
}

void require_no_launcher(const LaunchEnvironment& environment, const char* what,
                         const std::string& advice) {
  if (environment.world_size == 1) return;
  throw UsageError(
      fmt::format("this process is rank {} of {} ({}), and bench starts {} of its own: run it "
                  "without the launcher: {}",
                  environment.rank, environment.world_size, starter_of(environment), what, advice));
}

void require_fitting_launcher(const OptionTable& table, BenchMode mode,
                              const LaunchEnvironment& environment, const std::string& command) {
  if (environment.world_size == 1) return;
  const Option& asked = table["--nproc-per-node"];
  if (mode == kMeasure) {
    const std::string ranks =
        asked.given() ? "" : fmt::format(" --nproc-per-node {}", environment.world_size);
    require_no_launcher(environment, "ranks",
                        command + ranks + ". To measure the ranks of a launcher, add --predict");
  }
  if (mode != kSimulate && asked.given() && asked.text != std::to_string(environment.world_size)) {
    throw UsageError(
        fmt::format("--nproc-per-node: '{}': {} has started {} already; leave the option out",
                    asked.text, starter_of(environment), counted(environment.world_size, "rank")));
  }
}

void require_transport(const BenchOptions& options) {
  const TransportKind transport = options.transport;
  if (options.mode == BenchMode::kMeasure && transport == TransportKind::kUcx) {
    throw UsageError(
        "--transport: 'ucx' is for ranks on several hosts, and bench starts all ranks on one host: "
        "choose shm, tcp or auto");
  }
  if (options.mode != BenchMode::kSimulate) return;
  if (transport != TransportKind::kAuto && transport != TransportKind::kTcp) {
    throw UsageError(
        fmt::format("--transport: '{}': only messages are simulated: choose tcp, or leave it out "
                    "for hosts whose ranks share memory as well",
                    name_of(transport)));
  }
  const bench::Cluster& cluster = options.cluster;
  if (cluster.world_size() == 1) {
    throw UsageError("--simulate: a single rank has no other rank to communicate with");
  }
  if (cluster.hosts == 1 && transport == TransportKind::kAuto) {
    throw UsageError(fmt::format(
        "--simulate: the ranks of one host share memory, and only messages are simulated. Measure "
        "it: paceline bench {} --nproc-per-node {}; or add --transport tcp for ranks that share "
        "none",
        name_of(options.session.ops.front()), std::min(cluster.ranks, bench::kMaxRanks)));
  }
}

void require_algorithm(const BenchOptions& options, std::vector<std::string>& notes) {
  if (!options.session.algorithm) return;
  const Algorithm algorithm = *options.session.algorithm;
  if (options.mode == BenchMode::kMeasure && options.transport != TransportKind::kTcp) {
    throw UsageError(
        "--algorithm: the ranks of one host share memory, so there are no messages to arrange: add "
        "--transport tcp");
  }
  if (algorithm == Algorithm::kHierarchy && !has_hierarchy(options)) {
    throw UsageError(
        "--algorithm: hierarchy needs several hosts, each with several ranks that share memory: "
        "use --simulate hosts=4,ranks=2, or --predict with ranks on several hosts");
  }
  std::vector<std::string_view> others;
  for (const bench::Operation op : options.session.ops) {
    if (!serves(algorithm, op.op)) others.push_back(name_of(op));
  }
  if (others.empty()) return;
  if (others.size() == options.session.ops.size()) {
    throw UsageError(fmt::format("--algorithm: '{}' does not support {}: {}", name_of(algorithm),
                                 fmt::join(others, ", "),
                                 fmt::join(algorithms_for(options.session.ops.front().op), ", ")));
  }
  notes.push_back(fmt::format("--algorithm {} does not support {}: for these the planner chooses",
                              name_of(algorithm), fmt::join(others, ", ")));
}

}  // namespace paceline::apps
