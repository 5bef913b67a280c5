#include "paceline/training/data/grouped_order.h"

#include <algorithm>
#include <list>
#include <unordered_map>

#include "paceline/engine/core/check.h"

namespace paceline::data {
namespace {

using Indices = std::vector<std::int64_t>;

struct Group {
  Indices all;      // its samples so far
  Indices waiting;  // of those, the ones that no batch has
};

}  // namespace

Groups groups_by_bounds(std::span<const std::int64_t> values, const Indices& bounds) {
  check(std::ranges::is_sorted(bounds), "the bounds of groups are not in ascending order");
  Indices groups;
  groups.reserve(values.size());
  for (const std::int64_t value : values)
    groups.push_back(std::ranges::upper_bound(bounds, value) - bounds.begin());
  return std::make_shared<const Indices>(std::move(groups));
}

Indices grouped_order(std::span<const std::int64_t> order, const Indices& groups,
                      std::int64_t batch_size) {
  const auto size = static_cast<std::size_t>(batch_size);
  const std::size_t total = order.size() / size * size;
  Indices batches;
  batches.reserve(total);
  // In the order in which each last began to wait, which decides between groups that are as full.
  std::list<Group> waiting;
  std::unordered_map<std::int64_t, std::list<Group>::iterator> places;
  for (const std::int64_t sample : order) {
    const std::int64_t id = groups[static_cast<std::size_t>(sample)];
    if (!places.contains(id)) places[id] = waiting.emplace(waiting.end());
    Group& group = *places[id];
    group.all.push_back(sample);
    group.waiting.push_back(sample);
    if (group.waiting.size() < size) continue;
    batches.insert(batches.end(), group.waiting.begin(), group.waiting.end());
    group.waiting.clear();
    waiting.splice(waiting.end(), waiting, places[id]);
  }
  waiting.sort([](const Group& a, const Group& b) { return a.waiting.size() > b.waiting.size(); });
  for (auto group = waiting.begin(); batches.size() < total; ++group) {
    batches.insert(batches.end(), group->waiting.begin(), group->waiting.end());
    for (std::size_t i = 0; i < size - group->waiting.size(); ++i)
      batches.push_back(group->all[i % group->all.size()]);
  }
  return batches;
}

}  // namespace paceline::data
