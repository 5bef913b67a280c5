#include "paceline/launcher/job_timeline/timeline_clocks.h"

#include <map>

namespace paceline::launcher {
namespace {

// From the clock of one host to that of another, by way of the launcher's.
ClockShift between(const std::vector<ClockShift>& hosts, std::size_t from, std::size_t to) {
  if (from == to) return {};
  return {hosts[from].offset - hosts[to].offset, hosts[from].error + hosts[to].error};
}

bool agree(const ClockShift& a, const ClockShift& b) {
  return std::chrono::abs(a.offset - b.offset) <= a.error + b.error;
}

// What takes the ranks' own measurement back.
ClockShift without(const ClockShift& shift, const ClockShift& own) {
  return {shift.offset - own.offset, shift.error - own.error};
}

}  // namespace

std::vector<ClockShift> shifts_to_one_clock(const std::vector<TimelineOrigin>& timelines,
                                            const std::vector<ClockShift>& hosts) {
  std::map<std::uint32_t, std::size_t> first_hosts;  // of rank 0, by generation
  for (const TimelineOrigin& one : timelines) {
    if (one.rank == 0) first_hosts.emplace(one.generation, one.host);
  }
  std::vector<ClockShift> shifts;
  for (const TimelineOrigin& one : timelines) {
    const std::size_t common =
        first_hosts.empty() ? timelines.front().host : first_hosts.begin()->second;
    const auto first = first_hosts.find(one.generation);
    const bool known = first != first_hosts.end();
    const bool measured = known && (one.host == first->second ||
                                    (one.own.error > std::chrono::nanoseconds(0) &&
                                     agree(one.own, between(hosts, one.host, first->second))));
    shifts.push_back(measured ? between(hosts, first->second, common)
                              : without(between(hosts, one.host, common), one.own));
  }
  return shifts;
}

}  // namespace paceline::launcher
