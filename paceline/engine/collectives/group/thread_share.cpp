#include "paceline/engine/collectives/group/thread_share.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>

#include <dlfcn.h>
#include <fmt/format.h>

#include "paceline/engine/core/log.h"
#include "paceline/engine/core/topology.h"

namespace paceline {
namespace {

constexpr std::size_t kMostCores = 4096;  // of a machine; the mask has no more
using CoreSet = std::array<std::uint8_t, kMostCores / 8>;

bool leaves_threads_open(const std::string& launcher) {
  return launcher == "openmpi" || launcher == "pmi" || launcher == "slurm";
}

CoreSet own_cores() {
  CoreSet set{};
  for (const Core& core : discover_topology().cores) {
    const auto number = static_cast<std::size_t>(core.number);
    if (number < kMostCores) set[number / 8] |= static_cast<std::uint8_t>(1U << number % 8);
  }
  return set;
}

std::vector<int> numbers_in(const CoreSet& set) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < kMostCores; ++i) {
    if ((set[i / 8] >> i % 8 & 1) != 0) numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

// The variable is for what reads it when it begins to compute, as LibTorch; a runtime of OpenMP
// that is loaded has read it.
void use_threads(int count) {
  for (const char* name : {"OMP_NUM_THREADS", "PACELINE_THREAD_SHARE"})
    setenv(name, std::to_string(count).c_str(), 1);
  auto* const set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(count);
}

}  // namespace

int thread_share(const std::vector<std::vector<int>>& cores, std::size_t self) {
  std::map<int, int> num_ranks;
  for (const auto& set : cores) {
    for (const int core : set) ++num_ranks[core];
  }
  double share = 0;
  for (const int core : cores[self]) share += 1.0 / num_ranks[core];
  constexpr double kRounding = 1e-6;
  return std::max(1, static_cast<int>(share + kRounding));
}

void share_cores(ProcessGroup& group, const std::string& launcher) {
  if (!leaves_threads_open(launcher) || group.world_size() == 1) return;
  const CoreSet own = own_cores();
  std::vector<std::uint8_t> all(own.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(own), std::span(all));
  const auto& neighbours = group.hosts().neighbours(group.rank());
  const char* chosen = std::getenv("OMP_NUM_THREADS");
  if (neighbours.size() < 2 || (chosen != nullptr && *chosen != '\0')) return;
  std::vector<std::vector<int>> cores;
  for (const int rank : neighbours) {
    CoreSet set;
    std::copy_n(all.begin() + rank * static_cast<std::ptrdiff_t>(set.size()), set.size(),
                set.begin());
    cores.push_back(numbers_in(set));
  }
  const int threads = thread_share(cores, group.hosts().local_index(group.rank()));
  use_threads(threads);
  log::info(
      fmt::format("{} started {} ranks on this host: {} thread{} of computing for this one "
                  "(OMP_NUM_THREADS says otherwise)",
                  launcher, neighbours.size(), threads, threads == 1 ? "" : "s"));
}

}  // namespace paceline
