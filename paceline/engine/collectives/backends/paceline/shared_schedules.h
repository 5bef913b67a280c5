#pragma once

// The schedules of this rank that were built before. Thread safety: none; one executor owns it.

#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

class SharedSchedules {
 public:
  using Build = Schedule (*)(const ScheduleSpec& spec);

  // Valid until the next call. Requires: equal counts; one group, and so one rank and one world
  // size.
  const Schedule& find(const ScheduleSpec& spec, Build build);

 private:
  static constexpr std::size_t kNumEntries = 256;
  struct Entry {
    ScheduleSpec spec;
    Build build = nullptr;
    Schedule schedule;
  };
  std::vector<Entry> entries_{kNumEntries};  // each spec has one place
};

}  // namespace paceline
