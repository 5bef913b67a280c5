#include <algorithm>

#include <fmt/format.h>

#include "paceline/launcher/placement/machine_map.h"

namespace paceline::launcher {
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

  // One column per core: its cpus below each other, then whose it is.
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
