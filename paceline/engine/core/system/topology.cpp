#include "paceline/engine/core/system/topology.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <hwloc.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"

namespace paceline {

namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, DestroyTopology>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)>;

// An Atom core of a hybrid x86 processor has half as many vector units as the other cores, and
// training uses mainly vector units. Clock rates alone would make such a core look too fast.
constexpr double kAtomShare = 0.5;

// hwloc_topology_init() loads hwloc's plugins (OpenCL, GL, ...), which costs more than all other
// work in this file, although no plugin describes cores.
hwloc_topology_t init_without_plugins() {
  constexpr const char* kVariable = "HWLOC_PLUGINS_PATH";
  const bool was_set = std::getenv(kVariable) != nullptr;
  if (!was_set) setenv(kVariable, "/dev/null", 0);
  hwloc_topology_t topology = nullptr;
  const int status = hwloc_topology_init(&topology);
  if (!was_set) unsetenv(kVariable);
  return status == 0 ? topology : nullptr;
}

HwlocTopology prepare() {
  HwlocTopology topology(init_without_plugins());
  if (!topology) throw Error(ErrorCode::kSystem, "hwloc could not be initialised");
  hwloc_topology_set_all_types_filter(topology.get(), HWLOC_TYPE_FILTER_KEEP_NONE);
  for (const auto type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_CORE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE,
                          HWLOC_OBJ_L4CACHE}) {
    hwloc_topology_set_type_filter(topology.get(), type, HWLOC_TYPE_FILTER_KEEP_ALL);
  }
  hwloc_topology_set_type_filter(topology.get(), HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  // Also reads the cores that this process may not use; restrict_topology() separates them.
  hwloc_topology_set_flags(topology.get(), HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  return topology;
}

std::vector<int> members(hwloc_const_bitmap_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    cpus.push_back(cpu);
  }
  return cpus;
}

// The clock rate or capacity of a kind of core; comparable only between the kinds of one machine.
double raw_speed(const hwloc_info_s* infos, unsigned count) {
  double megahertz = 0, capacity = 0;
  bool atom = false;
  for (unsigned i = 0; i < count; ++i) {
    const std::string_view name = infos[i].name;
    if (name == "LinuxCapacity") capacity = std::atof(infos[i].value);
    if (name == "FrequencyMaxMHz") megahertz = std::atof(infos[i].value);
    if (name == "CoreType") atom = std::string_view(infos[i].value) == "IntelAtom";
  }
  return capacity > 0 ? capacity : megahertz * (atom ? kAtomShare : 1);
}

class Reader {
 public:
  explicit Reader(hwloc_topology_t machine) : machine_(machine) {}

  // Reads every core of the machine, including cores that this process may not use.
  Topology read() {
    Topology topology;
    read_cores(HWLOC_OBJ_CORE, topology);
    // Some virtual machines and containers report no cores; each hardware thread then is a core.
    if (topology.cores.empty()) read_cores(HWLOC_OBJ_PU, topology);
    for (hwloc_obj_t node = nullptr; (node = next(HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      topology.numa_nodes.push_back(
          {static_cast<int>(node->os_index), node->attr->numanode.local_memory});
    }
    topology.caches = std::move(caches_);
    set_speeds(topology.cores);
    return topology;
  }

 private:
  hwloc_obj_t next(hwloc_obj_type_t type, hwloc_obj_t previous) const {
    return hwloc_get_next_obj_by_type(machine_, type, previous);
  }

  void read_cores(hwloc_obj_type_t type, Topology& topology) {
    for (hwloc_obj_t o = nullptr; (o = next(type, o)) != nullptr;) {
      Core core{members(o->cpuset), std::max(hwloc_bitmap_first(o->nodeset), 0)};
      if (core.cpus.empty()) continue;
      place(o, core);
      core.number = static_cast<int>(topology.cores.size());
      topology.cores.push_back(std::move(core));
    }
  }

  // The cluster of a core is the innermost shared object that is a cache or a group; its cache is
  // the outermost cache.
  void place(hwloc_obj_t object, Core& core) {
    hwloc_obj_t cluster = nullptr, cache = nullptr, package = nullptr;
    for (hwloc_obj_t o = object->parent; o != nullptr; o = o->parent) {
      const bool is_cache = hwloc_obj_type_is_dcache(o->type) != 0;
      const bool is_shared = hwloc_bitmap_weight(o->cpuset) > hwloc_bitmap_weight(object->cpuset);
      if (cluster == nullptr && is_shared && (is_cache || o->type == HWLOC_OBJ_GROUP)) cluster = o;
      if (is_cache) cache = o;
      if (o->type == HWLOC_OBJ_PACKAGE) package = o;
    }
    core.package = number_of(packages_, package);
    core.cluster = number_of(clusters_, cluster);
    core.cache = number_of(cache_numbers_, cache);
    if (cache != nullptr && core.cache == static_cast<int>(caches_.size())) {
      caches_.push_back({static_cast<int>(cache->attr->cache.depth), cache->attr->cache.size});
    }
  }

  using Numbers = std::map<hwloc_obj_t, int>;
  static int number_of(Numbers& numbers, hwloc_obj_t object) {
    return numbers.emplace(object, static_cast<int>(numbers.size())).first->second;
  }

  void set_speeds(std::vector<Core>& cores) const {
    std::vector<double> speeds;
    for (const Core& core : cores) speeds.push_back(speed_of(core));
    const double fastest = *std::max_element(speeds.begin(), speeds.end());
    const double slowest = *std::min_element(speeds.begin(), speeds.end());
    if (slowest <= 0) return;  // some speeds are unknown
    for (std::size_t i = 0; i < cores.size(); ++i) cores[i].speed = speeds[i] / fastest;
  }

  double speed_of(const Core& core) const {
    const Bitmap set(hwloc_bitmap_alloc(), hwloc_bitmap_free);
    hwloc_bitmap_only(set.get(), static_cast<unsigned>(core.cpus.front()));
    const int kind = hwloc_cpukinds_get_by_cpuset(machine_, set.get(), 0);
    unsigned count = 0;
    hwloc_info_s* infos = nullptr;
    if (kind < 0 || hwloc_cpukinds_get_info(machine_, static_cast<unsigned>(kind), nullptr, nullptr,
                                            &count, &infos, 0) != 0) {
      return 0;
    }
    return raw_speed(infos, count);
  }

  const hwloc_topology_t machine_;
  Numbers packages_, clusters_, cache_numbers_;
  std::vector<Cache> caches_;
};

// The cpus of `core` that are in `given` or, if `wanted` is false, that are not in `given`.
std::vector<int> part_of(const Core& core, const std::vector<int>& given, bool wanted) {
  std::vector<int> cpus;
  for (const int cpu : core.cpus) {
    if (std::binary_search(given.begin(), given.end(), cpu) == wanted) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> given_cpus(hwloc_topology_t machine) {
  const Bitmap given(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  const auto allowed = hwloc_topology_get_allowed_cpuset(machine);
  if (hwloc_get_cpubind(machine, given.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(given.get(), allowed);
  }
  hwloc_bitmap_and(given.get(), given.get(), allowed);
  return members(given.get());
}

std::optional<CpuQuota> quota_of_this_process() {
  const auto cgroup = cgroup_cpu_quota("/sys/fs/cgroup", cgroup_text());
  const auto slurm = slurm_cpu_quota([](const char* name) { return std::getenv(name); });
  if (!cgroup || !slurm) return cgroup ? cgroup : slurm;
  return cgroup->cpus <= slurm->cpus ? cgroup : slurm;
}

// hwloc would read a file of any length into memory; the files of the largest machines have a few
// megabytes.
void check_file(const std::string& path) {
  constexpr std::uintmax_t kMaxBytes = 64 << 20;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;  // hwloc reports the missing file
  check(std::filesystem::is_regular_file(path, error), "topology: {} is not a file", path);
  check(std::filesystem::file_size(path, error) <= kMaxBytes,
        "topology: {} is larger than {} MiB, so it is not an lstopo file", path, kMaxBytes >> 20);
}

}  // namespace

int Topology::num_cpus() const {
  int count = 0;
  for (const Core& core : cores) count += static_cast<int>(core.cpus.size());
  return count;
}

std::vector<int> Topology::cpus() const {
  std::vector<int> all;
  for (const Core& core : cores) all.insert(all.end(), core.cpus.begin(), core.cpus.end());
  std::sort(all.begin(), all.end());
  return all;
}

int Topology::num_usable_cores() const {
  if (!quota) return num_cores();
  return std::max(1, std::min(num_cores(), static_cast<int>(quota->cpus)));
}

Topology discover_topology() {
  const HwlocTopology machine = prepare();
  if (hwloc_topology_load(machine.get()) != 0) {
    throw Error(ErrorCode::kSystem, "hwloc could not read the machine's topology");
  }
  Topology topology = restrict_topology(Reader(machine.get()).read(), given_cpus(machine.get()));
  const auto quota = quota_of_this_process();
  if (quota && quota->cpus < topology.num_cpus()) topology.quota = quota;
  return topology;
}

Topology load_topology(const std::string& description) {
  const HwlocTopology machine = prepare();
  const bool is_file = description.ends_with(".xml");
  if (is_file) check_file(description);
  const int status = is_file ? hwloc_topology_set_xml(machine.get(), description.c_str())
                             : hwloc_topology_set_synthetic(machine.get(), description.c_str());
  check(status == 0 && hwloc_topology_load(machine.get()) == 0,
        "topology: '{}' is neither an lstopo file (FILE.xml) nor a description like "
        "\"package:2 numa:1 l3:2 core:4 pu:2\"",
        description);
  return Reader(machine.get()).read();
}

Topology restrict_topology(const Topology& topology, const std::vector<int>& cpus) {
  Topology narrowed = topology;
  narrowed.cores.clear();
  for (const Core& core : topology.cores) {
    Core given = core, other = core;
    given.cpus = part_of(core, cpus, true);
    other.cpus = part_of(core, cpus, false);
    if (!given.cpus.empty()) narrowed.cores.push_back(std::move(given));
    if (!other.cpus.empty()) narrowed.other_cores.push_back(std::move(other));
  }
  check(!narrowed.cores.empty(), "topology: this process may use none of the chosen cpus");
  return narrowed;
}

namespace {

constexpr int kHighestCpu = 65535;

bool append_range(std::string_view text, std::vector<int>& cpus) {
  const auto dash = text.find('-');
  const auto first = parse_number<int>(text.substr(0, dash), 0, kHighestCpu);
  const auto last =
      dash == text.npos ? first : parse_number<int>(text.substr(dash + 1), 0, kHighestCpu);
  if (!first || !last || *first > *last) return false;
  for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  return true;
}

}  // namespace

std::string format_cpu_list(const std::vector<int>& cpus) { return format_ranges(cpus, ",", 2); }

std::optional<std::vector<int>> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  for (const std::string_view part : split(text, ',')) {
    if (!append_range(part, cpus)) return {};
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

}  // namespace paceline
