#include "paceline/engine/collectives/algorithms/subtrees.h"

#include "paceline/engine/collectives/algorithms/schedule_builder.h"

namespace paceline {
namespace {

// For every rank the first one after it that is on another host.
std::vector<int> ends_of_runs(const std::vector<int>& host_of) {
  std::vector<int> ends(host_of.size(), static_cast<int>(host_of.size()));
  for (std::size_t rank = host_of.size(); rank-- > 1;) {
    const bool is_same = host_of[rank - 1] == host_of[rank];
    ends[rank - 1] = is_same ? ends[rank] : static_cast<int>(rank);
  }
  return ends;
}

// The largest subtrees inside [first, first + number) whose ranks are all on one host.
void collect(const Hosts& hosts, const std::vector<int>& ends, int first, int number,
             std::vector<std::vector<Subtree>>& out) {
  const auto begin = static_cast<std::size_t>(first);
  if (ends[begin] >= first + number) {
    out[static_cast<std::size_t>(hosts.host_of[begin])].push_back({first, number});
    return;
  }
  const int left = floor_power_of_two(number - 1);
  collect(hosts, ends, first, left, out);
  collect(hosts, ends, first + left, number - left, out);
}

}  // namespace

std::vector<std::vector<Subtree>> subtrees_by_host(const Hosts& hosts) {
  std::vector<std::vector<Subtree>> all(hosts.size());
  collect(hosts, ends_of_runs(hosts.host_of), 0, hosts.world_size(), all);
  return all;
}

int ranks_of_equal_subtrees(const std::vector<std::vector<Subtree>>& by_host) {
  const int size = by_host.front().front().num_ranks;
  int first = 0;
  for (const auto& trees : by_host) {
    if (trees.size() != 1 || trees[0] != Subtree{first, size}) return 0;
    first += size;
  }
  return size;
}

}  // namespace paceline
