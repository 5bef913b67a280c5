#include "paceline/launcher/placement/machine_map.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "paceline/engine/core/cpu_list.h"
#include "paceline/launcher/placement/core_division.h"

namespace paceline::launcher {
namespace {

// Both parts of a core of which some hardware threads were given.
Cores whole_cores(const Topology& topology) {
  std::map<int, Core> by_number;
  for (const auto* cores : {&topology.cores, &topology.other_cores}) {
    for (const Core& core : *cores) {
      const auto [entry, is_new] = by_number.emplace(core.number, core);
      if (is_new) continue;
      auto& cpus = entry->second.cpus;
      cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
      std::sort(cpus.begin(), cpus.end());
    }
  }
  Cores cores;
  for (auto& [number, core] : by_number) cores.push_back(std::move(core));
  return cores;
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024;
  if (bytes >= 10 * kGiB) return fmt::format("{} GiB", (bytes + kGiB / 2) / kGiB);
  if (bytes >= kGiB) return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGiB);
  if (bytes >= kMiB) return fmt::format("{:.3g} MiB", static_cast<double>(bytes) / kMiB);
  return fmt::format("{} KiB", bytes / kKiB);
}

class Mapper {
 public:
  Mapper(const Topology& topology, const Placement* placement)
      : topology_(topology), given_(topology.cpus()) {
    if (placement == nullptr || !placement->bound) return;
    for (std::size_t rank = 0; rank < placement->ranks.size(); ++rank) {
      for (const int cpu : placement->ranks[rank].cpus)
        ranks_[cpu].push_back(static_cast<int>(rank));
    }
  }

  std::vector<MappedPackage> map() const {
    std::vector<MappedPackage> packages;
    for (const Cores& package : parts_at(whole_cores(topology_), Level::kPackage)) {
      MappedPackage mapped{fmt::format("package {}", package.front().package), {}};
      for (const Cores& node : parts_at(package, Level::kNuma)) mapped.nodes.push_back(map(node));
      packages.push_back(std::move(mapped));
    }
    return packages;
  }

 private:
  MappedNode map(const Cores& node) const {
    MappedNode mapped{node_name(node.front().numa_node), {}};
    for (const Cores& cache : parts_at(node, Level::kCache)) {
      MappedCache part{cache_name(cache.front().cache), {}};
      for (const Core& core : cache) part.cores.push_back(map(core));
      mapped.caches.push_back(std::move(part));
    }
    return mapped;
  }

  MappedCore map(const Core& core) const {
    MappedCore mapped{core, {}, {}};
    for (const int cpu : core.cpus) {
      mapped.given.push_back(std::binary_search(given_.begin(), given_.end(), cpu));
      const auto owners = ranks_.find(cpu);
      if (owners == ranks_.end()) continue;
      mapped.ranks.insert(mapped.ranks.end(), owners->second.begin(), owners->second.end());
    }
    std::sort(mapped.ranks.begin(), mapped.ranks.end());
    mapped.ranks.erase(std::unique(mapped.ranks.begin(), mapped.ranks.end()), mapped.ranks.end());
    return mapped;
  }

  std::string node_name(int number) const {
    for (const NumaNode& node : topology_.numa_nodes) {
      if (node.number == number && node.bytes > 0)
        return fmt::format("NUMA node {}, {}", number, size_text(node.bytes));
    }
    return fmt::format("NUMA node {}", number);
  }

  std::string cache_name(int number) const {
    if (number >= static_cast<int>(topology_.caches.size())) return "";
    const Cache& cache = topology_.caches[number];
    return fmt::format("L{} {}", cache.level, size_text(cache.bytes));
  }

  const Topology& topology_;
  const std::vector<int> given_;
  std::map<int, std::vector<int>> ranks_;  // by cpu
};

std::string counted(std::size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

bool MappedCore::is_given() const {
  return std::any_of(given.begin(), given.end(), [](bool is) { return is; });
}

std::string MappedCore::rank_text() const { return format_cpu_list(ranks); }

std::vector<MappedPackage> map_machine(const Topology& topology, const Placement* placement) {
  return Mapper(topology, placement).map();
}

std::string describe_machine(const Topology& topology) {
  const Cores cores = whole_cores(topology);
  std::size_t num_cpus = 0;
  for (const Core& core : cores) num_cpus += core.cpus.size();
  std::string text =
      fmt::format("{}, {}, {}, {}", counted(cores.size(), "core"), counted(num_cpus, "cpu"),
                  counted(parts_at(cores, Level::kPackage).size(), "package"),
                  counted(parts_at(cores, Level::kNuma).size(), "NUMA node"));
  if (!topology.caches.empty()) {
    text += ", " + counted(parts_at(cores, Level::kCache).size(),
                           fmt::format("L{} cache", topology.caches.front().level));
  }
  if (topology.other_cores.empty()) {
    text += "; all given to this process";
  } else {
    text += fmt::format("; given to this process: {}, cpus {}",
                        counted(topology.cores.size(), "core"), format_cpu_list(topology.cpus()));
  }
  if (topology.quota) {
    text += fmt::format("; {} grants {:.3g} cpus of time", topology.quota->source,
                        topology.quota->cpus);
  }
  return text;
}

}  // namespace paceline::launcher
