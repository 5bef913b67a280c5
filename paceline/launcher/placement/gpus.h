#pragma once

// The NVIDIA GPUs of this machine, as the kernel shows them: nothing of NVIDIA is loaded, so that
// the launcher makes no context on a GPU. Thread safety: every function may be called from any
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
  std::vector<int> cpus;  // the cpus that are near it; empty: unknown
  bool operator==(const Gpu&) const = default;
};

// The GPUs in the order of their bus ids, which is CUDA's order for GPUs of one kind. In a
// container only those that it was given. `root` is "/", or a copy of the files for tests.
std::vector<Gpu> find_gpus(const std::filesystem::path& root = "/");

// Returns the GPUs that a process with this CUDA_VISIBLE_DEVICES sees, in its order. Entries may be
// numbers, or UUIDs ("GPU-..."), which are counted without their places (Gpu()). Empty if unset:
// all.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::optional<std::string>& list);

// The cores of each rank, of which each has one of these GPUs: near its GPU, and its own. The ranks
// whose GPUs are near the same cores divide them evenly. Empty if that is not possible: a GPU whose
// place is unknown, or more ranks than cores near their GPUs.
std::optional<Binding> binding_near_gpus(const Topology& topology, const std::vector<Gpu>& gpus);

}  // namespace paceline::launcher
