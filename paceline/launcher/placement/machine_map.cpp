#include "paceline/launcher/placement/machine_map.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/placement/core_division.h"

namespace paceline::launcher {

namespace {

// All cores with all their hardware threads: joins the two entries of a core if only some of its
// hardware threads were given to this process.
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

std::string memory_text(std::uint64_t bytes) {
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
        return fmt::format("NUMA node {}, {}", number, memory_text(node.bytes));
    }
    return fmt::format("NUMA node {}", number);
  }

  std::string cache_name(int number) const {
    if (number >= static_cast<int>(topology_.caches.size())) return "";
    const Cache& cache = topology_.caches[number];
    return fmt::format("L{} {}", cache.level, memory_text(cache.bytes));
  }

  const Topology& topology_;
  const std::vector<int> given_;
  std::map<int, std::vector<int>> ranks_;  // by cpu
};

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

namespace {

constexpr std::size_t kCoresInALine = 16;
constexpr const char* kNotGiven = "x";
constexpr const char* kIdle = "-";

class TextDrawing {
 public:
  TextDrawing(const Topology& topology, const Placement* placement)
      : packages_(map_machine(topology, placement)),
        has_ranks_(placement != nullptr && placement->bound) {
    for_each_core([&](const MappedCore& core) {
      if (core.core.speed < 1) has_speeds_ = true;
      width_ = std::max(width_, core.rank_text().size());
      for (const int cpu : core.core.cpus) width_ = std::max(width_, fmt::to_string(cpu).size());
    });
    if (has_speeds_) width_ = std::max<std::size_t>(width_, 4);
  }

  std::string draw() {
    for (const MappedPackage& package : packages_) {
      text_ += package.name + "\n";
      for (const MappedNode& node : package.nodes) {
        text_ += fmt::format("  {}\n", node.name);
        for (const MappedCache& cache : node.caches) draw_cache(cache);
      }
    }
    return text_;
  }

 private:
  template <class Visit>
  void for_each_core(Visit visit) const {
    for (const auto& package : packages_)
      for (const auto& node : package.nodes)
        for (const auto& cache : node.caches)
          for (const auto& core : cache.cores) visit(core);
  }

  void draw_cache(const MappedCache& cache) {
    if (!cache.name.empty()) text_ += fmt::format("    {}\n", cache.name);
    for (std::size_t begin = 0; begin < cache.cores.size(); begin += kCoresInALine) {
      const auto end = std::min(begin + kCoresInALine, cache.cores.size());
      draw_cores({cache.cores.begin() + static_cast<long>(begin),
                  cache.cores.begin() + static_cast<long>(end)});
    }
  }

  // Draws a column for each core: its cpus below each other, then its ranks.
  void draw_cores(const std::vector<MappedCore>& cores) {
    std::size_t most_cpus = 0;
    bool all_given = true;
    for (const MappedCore& core : cores) {
      most_cpus = std::max(most_cpus, core.core.cpus.size());
      all_given = all_given && core.is_given();
    }
    for (std::size_t thread = 0; thread < most_cpus; ++thread) {
      row(thread == 0 ? "cpu" : "", cores, [&](const MappedCore& core) {
        if (thread >= core.core.cpus.size()) return std::string();
        const bool is_hole = core.is_given() && !core.given[thread];
        return is_hole ? std::string(kNotGiven) : fmt::to_string(core.core.cpus[thread]);
      });
    }
    if (has_speeds_) {
      row("speed", cores,
          [](const MappedCore& core) { return fmt::format("{:.2f}", core.core.speed); });
    }
    if (!has_ranks_ && all_given) return;
    row(has_ranks_ ? "rank" : "given", cores, [&](const MappedCore& core) -> std::string {
      if (!core.is_given()) return kNotGiven;
      if (!has_ranks_) return "yes";
      return core.ranks.empty() ? kIdle : core.rank_text();
    });
  }

  template <class Cell>
  void row(const char* name, const std::vector<MappedCore>& cores, Cell cell) {
    std::string line = fmt::format("      {:<6}", name);
    for (const MappedCore& core : cores) line += fmt::format(" {:>{}}", cell(core), width_);
    text_ += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }

  const std::vector<MappedPackage> packages_;
  const bool has_ranks_;
  bool has_speeds_ = false;
  std::size_t width_ = 3;
  std::string text_;
};

}  // namespace

std::string draw_machine_text(const Topology& topology, const Placement* placement) {
  std::string text = describe_machine(topology) + "\n\n" + TextDrawing(topology, placement).draw();
  if (placement == nullptr) return text;
  text += "\n";
  for (std::size_t rank = 0; rank < placement->ranks.size(); ++rank) {
    text +=
        describe_placement(static_cast<int>(rank), placement->ranks[rank], placement->bound) + "\n";
  }
  text += "\n";
  for (const std::string& reason : placement->reasons) text += fmt::format("because: {}\n", reason);
  return text;
}

}  // namespace paceline::launcher
