#pragma once

// Why a rank ended, where that can be known: what the kernel counted, what the loader, the C++
// library or Python wrote last, how full /dev/shm was. A pure function of what was collected;
// hint_for() (failure_report.h) says what is usual where nothing is known.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/diagnosis/kernel_log.h"
#include "paceline/launcher/diagnosis/memory_counters.h"

namespace paceline::launcher {

struct FileSystemRoom {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};
// Nothing when it cannot be asked.
std::optional<FileSystemRoom> room_of(const char* path);

struct EndEvidence {
  RankEnd end;
  std::string last_lines;                 // as RankOutput::last_lines() gives them
  MemoryCounters before, after;           // at the start of the ranks, at the end of this one
  std::optional<KernelKill> kernel_kill;  // the kernel's own words on this process
  std::optional<FileSystemRoom> shared;   // /dev/shm when it ended
};

// A sentence without an end; empty when nothing is known for certain.
std::string cause_of(const EndEvidence& evidence);

// "out of memory" for a cause that is that; otherwise empty.
std::string short_reason(const std::string& cause);

}  // namespace paceline::launcher
