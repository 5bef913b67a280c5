#include "paceline/core/topology.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <hwloc.h>

#include "paceline/core/error.h"

namespace paceline {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, DestroyTopology>;

// hwloc loads its plugins (OpenCL, GL, ...) in init, which costs more than everything else here;
// none of them knows cores.
hwloc_topology_t init_without_plugins() {
  constexpr const char* kVariable = "HWLOC_PLUGINS_PATH";
  const bool was_set = std::getenv(kVariable) != nullptr;
  if (!was_set) setenv(kVariable, "/dev/null", 0);
  hwloc_topology_t topology = nullptr;
  const int status = hwloc_topology_init(&topology);
  if (!was_set) unsetenv(kVariable);
  return status == 0 ? topology : nullptr;
}

HwlocTopology load_cores() {
  HwlocTopology topology(init_without_plugins());
  if (!topology) throw Error(ErrorCode::kSystem, "hwloc could not be initialised");
  hwloc_topology_set_all_types_filter(topology.get(), HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(topology.get(), HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology.get()) != 0) {
    throw Error(ErrorCode::kSystem, "hwloc could not read the machine's topology");
  }
  return topology;
}

std::vector<int> members(hwloc_const_bitmap_t set, hwloc_const_bitmap_t allowed) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    if (hwloc_bitmap_isset(allowed, static_cast<unsigned>(cpu))) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<Core> cores_within(hwloc_topology_t topology, hwloc_const_bitmap_t allowed) {
  std::vector<Core> cores;
  auto add = [&](hwloc_obj_t object) {
    Core core{members(object->cpuset, allowed), hwloc_bitmap_first(object->nodeset)};
    core.numa_node = std::max(core.numa_node, 0);
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  };
  for (hwloc_obj_t o = nullptr;
       (o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, o)) != nullptr;) {
    add(o);
  }
  if (!cores.empty()) return cores;
  // Some virtual machines and containers show no cores: every hardware thread then counts as one.
  for (hwloc_obj_t o = nullptr;
       (o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, o)) != nullptr;) {
    add(o);
  }
  return cores;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<double> quota_of(const std::string& quota_text, const std::string& period_text) {
  const double quota = std::atof(quota_text.c_str());
  const double period = std::atof(period_text.c_str());
  if (quota <= 0 || period <= 0) return {};
  return quota / period;
}

std::optional<double> quota_of_folder(const std::string& folder, bool unified) {
  if (!unified) {
    return quota_of(first_line(folder + "/cpu.cfs_quota_us"),
                    first_line(folder + "/cpu.cfs_period_us"));
  }
  std::istringstream line(first_line(folder + "/cpu.max"));
  std::string quota, period;
  line >> quota >> period;
  return quota == "max" ? std::nullopt : quota_of(quota, period);
}

}  // namespace

int Topology::num_cpus() const {
  int count = 0;
  for (const Core& core : cores) count += static_cast<int>(core.cpus.size());
  return count;
}

int Topology::num_usable_cores() const {
  if (!cpu_quota) return num_cores();
  return std::max(1, std::min(num_cores(), static_cast<int>(*cpu_quota)));
}

Topology discover_topology() {
  const HwlocTopology machine = load_cores();
  std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> allowed(hwloc_bitmap_alloc(),
                                                                    hwloc_bitmap_free);
  if (hwloc_get_cpubind(machine.get(), allowed.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(machine.get()));
  }
  Topology topology;
  topology.cores = cores_within(machine.get(), allowed.get());
  if (topology.cores.empty()) throw Error(ErrorCode::kSystem, "hwloc sees no usable cpu");
  std::ostringstream membership;
  membership << std::ifstream("/proc/self/cgroup").rdbuf();
  topology.cpu_quota = cgroup_cpu_quota("/sys/fs/cgroup", membership.str());
  return topology;
}

std::optional<double> cgroup_cpu_quota(const std::string& root, const std::string& membership) {
  std::optional<double> smallest;
  auto look_at = [&](const std::string& folder, bool unified) {
    const auto quota = quota_of_folder(folder, unified);
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  };
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // hierarchy:controllers:path; the unified hierarchy has no controllers.
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string mount = unified ? root : fmt::format("{}/cpu", root);
    for (std::string_view path = std::string_view(line).substr(second + 1);
         path.starts_with('/') && path.size() > 1; path = path.substr(0, path.rfind('/'))) {
      look_at(fmt::format("{}{}", mount, path), unified);
    }
    look_at(mount, unified);
  }
  return smallest;
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i;
    while (end + 1 < cpus.size() && cpus[end + 1] == cpus[end] + 1) ++end;
    if (!text.empty()) text += ',';
    text += end == i ? fmt::to_string(cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[end]);
    i = end + 1;
  }
  return text;
}

}  // namespace paceline
