#pragma once

// The hosts of a group's ranks.
//
// Thread safety: a value.

#include <cstddef>
#include <vector>

namespace paceline {

// The ranks of each host. All ranks have the same value.
struct Hosts {
  // The host of each rank; hosts are numbered from 0 in the order of their first ranks.
  std::vector<int> host_of;
  std::vector<std::vector<int>> members;  // ranks of each host, ascending

  // Makes Hosts from the hosts of the ranks, which may have any numbers.
  static Hosts from(const std::vector<int>& host_of);
  // Makes `num_hosts` hosts with `ranks` consecutive ranks each.
  static Hosts blocks(int num_hosts, int ranks);
  std::size_t size() const { return members.size(); }
  int world_size() const { return static_cast<int>(host_of.size()); }
  const std::vector<int>& neighbours(int rank) const {
    return members[static_cast<std::size_t>(host_of[static_cast<std::size_t>(rank)])];
  }
  // Whether every host has the same number of ranks, and each host's ranks are consecutive.
  bool are_equal_blocks() const;
  // The position of `rank` among the ranks of its host.
  std::size_t local_index(int rank) const;
};

}  // namespace paceline
