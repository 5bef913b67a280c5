#pragma once

// The NVIDIA GPUs of this machine, as the kernel lists them. No NVIDIA library is loaded, so the
// launcher creates no context on a GPU. Thread safety: every function may be called from any
// thread.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/placement/placement.h"

namespace paceline::launcher {

struct Gpu {
  std::string bus_id;     // "0000:3b:00.0"
  int numa_node = -1;     // -1: unknown
  std::vector<int> cpus;  // the cpus near it; empty: unknown
  bool operator==(const Gpu&) const = default;
};

// Returns the GPUs in the order of their bus ids, which is CUDA's order for GPUs of one kind. In a
// container, returns only the GPUs that it was given. `root`: "/"; tests pass a copy of the files.
std::vector<Gpu> find_gpus(const std::filesystem::path& root = "/");

// Returns the GPUs that a process sees if its CUDA_VISIBLE_DEVICES is `list`, in the order of the
// list; all GPUs if `list` is nullopt. Entries may be numbers, or UUIDs ("GPU-...", "MIG-..."). An
// entry with a UUID becomes an empty Gpu, because its bus id is not known.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::optional<std::string>& list);

// Chooses cores for each rank near its GPU; rank i has gpus[i]. No two ranks get the same core:
// ranks whose GPUs are near the same cores divide these cores, and more of them go to a rank that
// has fewer other cores. Returns nullopt if the cpus near a GPU are unknown, or if no core is left
// for a rank.
std::optional<Binding> binding_near_gpus(const Topology& topology, const std::vector<Gpu>& gpus);

}  // namespace paceline::launcher
