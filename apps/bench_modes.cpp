#include "apps/bench_modes.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/bench/pattern.h"
#include "paceline/core/counted.h"

#include "apps/usage_error.h"

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

std::string starter_of(const LaunchEnvironment& who) {
  if (who.launcher == "paceline") return "paceline run";
  if (who.launcher == "openmpi") return "mpirun";
  if (who.launcher == "pmi") return "mpiexec";
  if (who.launcher == "slurm") return "srun";
  return who.launcher == "env" ? "RANK and WORLD_SIZE in the environment" : who.launcher;
}

std::vector<std::string_view> algorithms_for(Op op) {
  std::vector<std::string_view> names;
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (serves(algorithm, op)) names.push_back(name_of(algorithm));
  }
  return names;
}

// Where the ranks are known before they start.
bool has_hierarchy(const BenchOptions& options) {
  if (options.mode == BenchMode::kMeasure) return false;
  if (options.mode != BenchMode::kSimulate) return true;  // the group will show it
  return options.cluster.hosts > 1 && options.cluster.ranks > 1 &&
         options.transport != TransportKind::kTcp;
}

}  // namespace

BenchMode mode_of(const BenchTexts& texts) {
  if (texts.calibrate) return BenchMode::kCalibrate;
  if (!texts.simulate.empty()) return BenchMode::kSimulate;
  if (texts.predict) return BenchMode::kPredict;
  return texts.explain ? BenchMode::kExplain : BenchMode::kMeasure;
}

void require_meaning(const BenchTexts& texts, BenchMode mode) {
  struct Use {
    const char* flag;
    bool is_given;
    std::vector<BenchMode> modes;
  };
  using enum BenchMode;
  const std::vector<Use> uses = {
      {"an operation", !texts.ops.empty(), {kMeasure, kSimulate, kExplain, kPredict}},
      {"--nproc-per-node",
       !texts.nproc_per_node.empty(),
       {kMeasure, kCalibrate, kExplain, kPredict}},
      {"--sizes", !texts.sizes.empty(), {kMeasure, kSimulate, kExplain, kPredict}},
      {"--dtype", !texts.dtype.empty(), {kMeasure, kSimulate, kExplain, kPredict}},
      {"--placement", !texts.placement.empty(), {kMeasure}},
      {"--memory", !texts.memory.empty(), {kMeasure}},
      {"--buffers", !texts.buffers.empty(), {kMeasure}},
      {"--transport", !texts.transport.empty(), {kMeasure, kSimulate, kExplain, kPredict}},
      {"--peer", !texts.peer.empty(), {kMeasure}},
      {"--rounds", !texts.rounds.empty(), {kMeasure}},
      {"--calls", !texts.calls.empty(), {kMeasure, kPredict}},
      {"--check", texts.check, {kMeasure}},
      {"--no-bind", texts.no_bind, {kMeasure}},
      {"--timeout", !texts.timeout.empty(), {kMeasure, kPredict}},
      {"--json", !texts.json.empty(), {kMeasure, kSimulate, kPredict}},
      {"--csv", !texts.csv.empty(), {kMeasure}},
      {"--html", !texts.html.empty(), {kMeasure}},
      {"--algorithm", !texts.algorithm.empty(), {kMeasure, kSimulate, kExplain, kPredict}},
      {"--calibrate", texts.calibrate, {kCalibrate}},
      {"--keep-noisy", texts.keep_noisy, {kCalibrate}},
      {"--simulate", !texts.simulate.empty(), {kSimulate}},
      {"--explain", texts.explain, {kSimulate, kExplain}},
      {"--predict", texts.predict, {kPredict}}};
  for (const Use& use : uses) {
    const auto& modes = use.modes;
    if (use.is_given && std::find(modes.begin(), modes.end(), mode) == modes.end()) {
      throw UsageError(fmt::format("{} has no meaning with {}", use.flag, flag_of(mode)));
    }
  }
}

void require_place(const BenchTexts& texts, BenchMode mode, const LaunchEnvironment& who,
                   const std::string& command) {
  if (who.world_size == 1) return;
  if (mode == BenchMode::kMeasure) {
    const std::string ranks =
        texts.nproc_per_node.empty() ? fmt::format(" --nproc-per-node {}", who.world_size) : "";
    throw UsageError(fmt::format(
        "this process is rank {} of {} ({}), and bench starts ranks of its own: type it "
        "without the launcher: {}{}. To measure the ranks of a launcher, add --predict",
        who.rank, who.world_size, starter_of(who), command, ranks));
  }
  if (mode != BenchMode::kSimulate && !texts.nproc_per_node.empty() &&
      texts.nproc_per_node != std::to_string(who.world_size)) {
    throw UsageError(fmt::format("--nproc-per-node: '{}': {} started {}; leave it out",
                                 texts.nproc_per_node, starter_of(who),
                                 counted(who.world_size, "rank")));
  }
}

void require_transport(const BenchOptions& options) {
  const TransportKind transport = options.transport;
  if (options.mode == BenchMode::kMeasure && transport == TransportKind::kUcx) {
    throw UsageError(
        "--transport: 'ucx' is for ranks of several hosts, and those that bench starts share one: "
        "shm, tcp or auto");
  }
  if (options.mode != BenchMode::kSimulate) return;
  if (transport != TransportKind::kAuto && transport != TransportKind::kTcp) {
    throw UsageError(fmt::format(
        "--transport: '{}': what is simulated is messages: tcp, or leave it out for hosts whose "
        "ranks share memory as well",
        name_of(transport)));
  }
  const bench::Cluster& cluster = options.cluster;
  if (cluster.world_size() == 1) {
    throw UsageError("--simulate: one rank alone has nobody to communicate with");
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
        "--algorithm: the ranks of one host share memory, where there are no messages to arrange: "
        "add --transport tcp");
  }
  if (algorithm == Algorithm::kHierarchy && !has_hierarchy(options)) {
    throw UsageError(
        "--algorithm: hierarchy is for several hosts with several ranks each that share memory: "
        "--simulate hosts=4,ranks=2, or ranks of several hosts with --predict");
  }
  std::vector<std::string_view> others;
  for (const bench::Operation op : options.session.ops) {
    if (!serves(algorithm, op.op)) others.push_back(name_of(op));
  }
  if (others.empty()) return;
  if (others.size() == options.session.ops.size()) {
    throw UsageError(fmt::format("--algorithm: '{}' does not serve {}: {}", name_of(algorithm),
                                 fmt::join(others, ", "),
                                 fmt::join(algorithms_for(options.session.ops.front().op), ", ")));
  }
  notes.push_back(fmt::format("--algorithm {} does not serve {}: the planner chooses there",
                              name_of(algorithm), fmt::join(others, ", ")));
}

}  // namespace paceline::apps
