#include "paceline/collectives/algorithms/subtrees.h"

#include "paceline/collectives/algorithms/schedule_builder.h"

namespace paceline {
namespace {

// The largest subtrees inside [first, first + number) whose ranks are all in `host`.
void collect(const Hosts& hosts, int host, int first, int number, std::vector<Subtree>& out) {
  int inside = 0;
  for (int rank = first; rank < first + number; ++rank) {
    inside += hosts.host_of[static_cast<std::size_t>(rank)] == host ? 1 : 0;
  }
  if (inside == number) {
    out.push_back({first, number});
  } else if (inside > 0) {
    const int left = floor_power_of_two(number - 1);
    collect(hosts, host, first, left, out);
    collect(hosts, host, first + left, number - left, out);
  }
}

}  // namespace

std::vector<Subtree> subtrees_of(const Hosts& hosts, int host) {
  std::vector<Subtree> trees;
  collect(hosts, host, 0, hosts.world_size(), trees);
  return trees;
}

std::vector<std::vector<Subtree>> subtrees_by_host(const Hosts& hosts) {
  std::vector<std::vector<Subtree>> all;
  for (int host = 0; host < static_cast<int>(hosts.size()); ++host) {
    all.push_back(subtrees_of(hosts, host));
  }
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
