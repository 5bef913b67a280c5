#pragma once

// The schedules of this rank that were built before. Thread safety: none; one executor owns it.

#include <cstdint>
#include <unordered_map>

#include "paceline/collectives/algorithms/schedule.h"

namespace paceline {

class SharedSchedules {
 public:
  using Build = Schedule (*)(const ScheduleSpec& spec);

  // Valid until the next call. Requires: equal counts; one group, and so one rank and one world
  // size.
  const Schedule& find(const ScheduleSpec& spec, Build build);

 private:
  struct Entry {
    ScheduleSpec spec;
    Build build = nullptr;
    Schedule schedule;
  };
  std::unordered_map<std::uint64_t, Entry> entries_;
};

}  // namespace paceline
