#include "paceline/launcher/placement/gpus.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include "paceline/engine/core/option_text.h"

namespace paceline::launcher {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// PCI class 0x03 means a display controller; GPUs without a display output have 0x0302.
bool is_gpu(const fs::path& device) {
  return first_line(device / "vendor") == "0x10de" &&
         first_line(device / "class").starts_with("0x03");
}

}  // namespace

std::vector<Gpu> find_gpus(const fs::path& root) {
  const fs::path given = root / "proc/driver/nvidia/gpus";
  std::error_code error;
  const bool knows_given = fs::is_directory(given, error);
  std::vector<Gpu> gpus;
  for (const auto& entry : fs::directory_iterator(root / "sys/bus/pci/devices", error)) {
    const std::string bus_id = entry.path().filename();
    if (!is_gpu(entry.path()) || (knows_given && !fs::exists(given / bus_id, error))) continue;
    gpus.push_back(
        {.bus_id = bus_id,
         .numa_node = parse_number<int>(first_line(entry.path() / "numa_node")).value_or(-1),
         .cpus = parse_cpu_list(first_line(entry.path() / "local_cpulist"))
                     .value_or(std::vector<int>())});
  }
  std::sort(gpus.begin(), gpus.end(),
            [](const Gpu& a, const Gpu& b) { return a.bus_id < b.bus_id; });
  return gpus;
}

// Like CUDA, ignores the first entry that is neither the index of a GPU nor a UUID, and all entries
// after it. Does not check UUIDs.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::optional<std::string>& list) {
  if (!list) return all;
  std::vector<Gpu> visible;
  for (const std::string_view entry : split(*list, ',')) {
    if (entry.starts_with("GPU-") || entry.starts_with("MIG-")) {
      visible.emplace_back();
      continue;
    }
    const auto number = parse_number<int>(entry);
    if (!number || *number < 0 || *number >= static_cast<int>(all.size())) break;
    visible.push_back(all[static_cast<std::size_t>(*number)]);
  }
  return visible;
}

std::optional<Binding> binding_near_gpus(const Topology& topology, const std::vector<Gpu>& gpus) {
  using Ranks = std::vector<std::size_t>;
  const auto is_unknown = [](const Gpu& gpu) { return gpu.cpus.empty(); };
  if (std::ranges::any_of(gpus, is_unknown)) return {};
  // Areas of cores that are near the GPUs of the same ranks; areas with fewer ranks come first.
  std::map<std::pair<std::size_t, Ranks>, std::vector<const Core*>> areas;
  for (const Core& core : topology.cores) {
    Ranks near;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
      if (std::ranges::binary_search(gpus[rank].cpus, core.cpus.front())) near.push_back(rank);
    }
    if (!near.empty()) areas[{near.size(), near}].push_back(&core);
  }
  Binding binding{.to = BindTo::kMap, .map = std::vector<std::vector<int>>(gpus.size())};
  std::vector<std::size_t> num_cores(gpus.size());
  for (const auto& [key, cores] : areas) {
    const Ranks& ranks = key.second;
    std::vector<std::size_t> num_before = num_cores;
    for (std::size_t i = 0; i < cores.size(); ++i) {
      ++num_cores[*std::ranges::min_element(ranks, {}, [&](auto rank) { return num_cores[rank]; })];
    }
    auto next = cores.begin();
    for (const std::size_t rank : ranks) {
      for (; num_before[rank] < num_cores[rank]; ++num_before[rank], ++next) {
        binding.map[rank].insert(binding.map[rank].end(), (*next)->cpus.begin(),
                                 (*next)->cpus.end());
      }
    }
  }
  if (std::ranges::count(num_cores, 0U) > 0) return {};
  for (std::vector<int>& cpus : binding.map) std::ranges::sort(cpus);
  return binding;
}

}  // namespace paceline::launcher
