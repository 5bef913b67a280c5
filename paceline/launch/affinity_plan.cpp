#include "paceline/launch/affinity_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "paceline/core/check.h"

namespace paceline::launch {
namespace {

using CoreRun = std::span<const Core>;

// `cores` in `parts` contiguous runs whose lengths differ by at most one.
std::vector<CoreRun> split_evenly(CoreRun cores, int parts) {
  std::vector<CoreRun> runs;
  for (int i = 0; i < parts; ++i) {
    const auto begin = cores.size() * i / parts;
    const auto end = cores.size() * (i + 1) / parts;
    runs.push_back(cores.subspan(begin, end - begin));
  }
  return runs;
}

// The cores of each NUMA node, when each node's cores stand together; otherwise all cores as one
// run.
std::vector<CoreRun> numa_runs(CoreRun cores) {
  std::vector<CoreRun> runs;
  std::map<int, int> seen;
  for (std::size_t begin = 0; begin < cores.size();) {
    std::size_t end = begin;
    while (end < cores.size() && cores[end].numa_node == cores[begin].numa_node) ++end;
    if (++seen[cores[begin].numa_node] > 1) return {cores};
    runs.push_back(cores.subspan(begin, end - begin));
    begin = end;
  }
  return runs;
}

std::vector<CoreRun> divide(CoreRun cores, int num_ranks) {
  const auto nodes = numa_runs(cores);
  const int num_nodes = static_cast<int>(nodes.size());
  const bool same_size = std::all_of(nodes.begin(), nodes.end(), [&](CoreRun node) {
    return node.size() == nodes.front().size();
  });
  if (num_nodes < 2 || !same_size || num_ranks % num_nodes != 0) {
    return split_evenly(cores, num_ranks);
  }
  std::vector<CoreRun> runs;
  for (const CoreRun node : nodes) {
    for (const CoreRun run : split_evenly(node, num_ranks / num_nodes)) runs.push_back(run);
  }
  return runs;
}

std::vector<int> cpus_of(CoreRun cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace

AffinityPlan plan_affinity(const Topology& topology, const AffinityRequest& request) {
  const int num_ranks = request.num_local_ranks;
  check(num_ranks >= 1 && !topology.cores.empty(), "affinity: {} ranks on {} cores", num_ranks,
        topology.num_cores());
  AffinityPlan plan;
  const bool enough = num_ranks <= topology.num_cores();
  plan.bind = request.bind && enough;
  const int most = std::max(1, topology.num_usable_cores() / num_ranks);
  const auto runs = enough ? divide(topology.cores, num_ranks) : std::vector<CoreRun>{};
  int total_threads = 0;
  for (int i = 0; i < num_ranks; ++i) {
    const CoreRun own = enough ? runs[i] : CoreRun(topology.cores);
    RankCpus rank;
    rank.cpus = cpus_of(plan.bind ? own : CoreRun(topology.cores));
    rank.num_cores = enough ? static_cast<int>(own.size()) : 0;
    const int per_core = topology.cpu_quota ? std::min(rank.num_cores, most) : rank.num_cores;
    rank.num_threads = request.threads_per_rank.value_or(std::max(1, per_core));
    total_threads += rank.num_threads;
    plan.ranks.push_back(std::move(rank));
  }
  const int granted = topology.cpu_quota
                          ? std::min(topology.num_cpus(),
                                     std::max(1, static_cast<int>(std::ceil(*topology.cpu_quota))))
                          : topology.num_cpus();
  plan.oversubscribed = total_threads > granted;
  return plan;
}

std::string describe_binding(int rank, const RankCpus& cpus, bool bound) {
  const std::string threads =
      fmt::format("{} thread{}", cpus.num_threads, cpus.num_threads == 1 ? "" : "s");
  if (!bound) return fmt::format("rank {}: not bound, {}", rank, threads);
  return fmt::format("rank {}: cpus {} ({} core{}), {}", rank, format_cpu_list(cpus.cpus),
                     cpus.num_cores, cpus.num_cores == 1 ? "" : "s", threads);
}

}  // namespace paceline::launch
