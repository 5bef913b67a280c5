#include "paceline/launcher/diagnosis/straggler_report.h"

#include <utility>

#include <fmt/format.h>

namespace paceline::launcher {

std::vector<RankShare> StragglerReport::look(std::vector<Flight> flights,
                                             const std::map<int, pid_t>& ranks,
                                             Clock::time_point now) {
  before_last_ = std::exchange(last_, {now, {}});
  for (const auto& [rank, pid] : ranks) last_.counters[rank] = activity_of(pid);
  std::vector<RankShare> shares;
  for (Flight& flight : flights) {
    if (!ranks.contains(flight.rank)) continue;
    keep_since(flight, std::chrono::duration<double>(patience_).count());
    shares.push_back(
        {flight.rank, share_inside(flight), static_cast<int>(flight.operations.size())});
  }
  return shares;
}

std::string StragglerReport::text(const StragglerOrder& order, pid_t pid,
                                  Clock::time_point now) const {
  const auto found = before_last_.counters.find(order.rank);
  if (found == before_last_.counters.end()) return "";  // it was started meanwhile
  const ActivityCounters& before = found->second;
  const ActivityCounters after = activity_of(pid);
  const double span = std::chrono::duration<double>(now - before_last_.when).count();
  const RankActivity activity{.span = span,
                              .on_cpu = after.on_cpu - before.on_cpu,
                              .ready = after.ready - before.ready,
                              .in_operations = order.inside * span,
                              .throttled = after.throttled - before.throttled};
  return fmt::format(
      "rank {} keeps the others waiting: it spends {:.0f}% of the time in operations, every other "
      "rank at least {:.0f}%, most of it waiting for this one\n  probable cause: {}",
      order.rank, 100 * order.inside, 100 * order.others, straggler_cause(activity));
}

}  // namespace paceline::launcher
