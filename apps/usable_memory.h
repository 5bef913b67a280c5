#pragma once

#include <algorithm>
#include <cstdint>

#include "paceline/launcher/diagnosis/memory_counters.h"

namespace paceline::apps {

// What a job may use here: the machine's memory, or the limit of a cgroup.
inline std::uint64_t usable_memory() {
  const launcher::MemoryCounters memory = launcher::read_memory_counters();
  return std::min(memory.machine_bytes, memory.limit.value_or(memory.machine_bytes));
}

}  // namespace paceline::apps
