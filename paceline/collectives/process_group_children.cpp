// The groups that are made of a group.

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "paceline/collectives/process_group.h"
#include "paceline/core/check.h"

namespace paceline {

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks,
                                                      std::optional<GroupOptions> options) {
  require_member("new_group");
  check(!ranks.empty(), "rank {}: new_group: no ranks", rank_);
  check(std::set<int>(ranks.begin(), ranks.end()).size() == ranks.size(),
        "rank {}: new_group: a rank is named twice", rank_);
  for (const int rank : ranks) {
    check(rank >= 0 && rank < world_size(),
          "rank {}: new_group: {} is not a rank of group {}, which has {} ranks", rank_, rank,
          name_, world_size());
  }
  return form(fmt::format("{}.{}", name_, num_children_++), ranks, options);
}

std::shared_ptr<ProcessGroup> ProcessGroup::split(int color, int key,
                                                  std::optional<GroupOptions> options) {
  require_member("split");
  const std::array<std::int32_t, 2> mine = {color, key};
  std::vector<std::int32_t> all(2 * world_ranks_.size());
  all_gather(std::span(mine), std::span(all));
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (all[2 * static_cast<std::size_t>(rank)] == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all[2 * static_cast<std::size_t>(a) + 1] < all[2 * static_cast<std::size_t>(b) + 1];
  });
  const std::string name = fmt::format("{}.{}.{}", name_, num_children_++, color);
  return form(name, color < 0 ? std::vector<int>() : ranks, options);
}

std::shared_ptr<ProcessGroup> ProcessGroup::form(const std::string& name,
                                                 const std::vector<int>& ranks,
                                                 const std::optional<GroupOptions>& options) {
  std::vector<int> world_ranks;
  for (const int rank : ranks) world_ranks.push_back(world_ranks_[static_cast<std::size_t>(rank)]);
  GroupOptions child = options.value_or(options_);
  if (!child.timeout) child.timeout = options_.timeout;
  if (!child.recorder) child.recorder = options_.recorder;
  if (!child.timeline) child.timeline = options_.timeline;
  return std::make_shared<ProcessGroup>(rendezvous_, name, std::move(world_ranks), child);
}

}  // namespace paceline
