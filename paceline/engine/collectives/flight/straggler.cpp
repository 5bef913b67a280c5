#include "paceline/engine/collectives/flight/straggler.h"

#include <algorithm>
#include <map>
#include <vector>

namespace paceline::flight {
namespace {

constexpr std::size_t kFewestOperations = 20;
constexpr double kShareOfWaiting = 0.5;
constexpr double kShareOfTime = 0.1;

struct Entry {
  double seconds;
  int rank;
};

std::map<std::uint32_t, std::vector<Entry>> entries_of(const GroupPositions& group) {
  const bool one_machine =
      std::all_of(group.ranks.begin(), group.ranks.end(), [&](const Position& position) {
        return position.flight->boot == group.ranks.front().flight->boot;
      });
  std::map<std::uint32_t, std::vector<Entry>> entries;
  for (const Position& position : group.ranks) {
    for (const auto& operation : position.flight->operations) {
      if (operation.call.group != position.number || operation.sequence == 0 ||
          is_message(operation) || operation.state != FlightState::kDone) {
        continue;
      }
      const double seconds = one_machine ? static_cast<double>(operation.entered) * 1e-9
                                         : static_cast<double>(operation.entered_wall) * 1e-9;
      entries[operation.sequence].push_back({seconds, position.flight->rank});
    }
  }
  std::erase_if(entries,
                [&](const auto& item) { return item.second.size() != group.ranks.size(); });
  return entries;
}

}  // namespace

std::optional<Straggler> find_straggler(const GroupPositions& group) {
  auto entries = entries_of(group);
  if (group.ranks.size() < 2 || entries.size() < kFewestOperations) return {};
  std::map<int, Straggler> candidates;
  double total = 0;
  double first = entries.begin()->second.front().seconds;
  double last = first;
  for (auto& [sequence, ranks] : entries) {
    std::sort(ranks.begin(), ranks.end(),
              [](const Entry& a, const Entry& b) { return a.seconds < b.seconds; });
    const double gap = ranks.back().seconds - ranks[ranks.size() - 2].seconds;
    auto& candidate = candidates[ranks.back().rank];
    candidate.rank = ranks.back().rank;
    ++candidate.times_last;
    candidate.waited_seconds += gap;
    total += gap;
    first = std::min(first, ranks.front().seconds);
    last = std::max(last, ranks.back().seconds);
  }
  for (auto& [rank, candidate] : candidates) {
    candidate.num_operations = entries.size();
    candidate.span_seconds = last - first;
    if (candidate.waited_seconds > kShareOfWaiting * total &&
        candidate.waited_seconds > kShareOfTime * candidate.span_seconds) {
      return candidate;
    }
  }
  return {};
}

}  // namespace paceline::flight
