#pragma once

// What both halves of the hierarchy are made of: where the ranks are, and the sums that a host
// makes of its own ranks' contributions. One rank's view.

#include <algorithm>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule_builder.h"
#include "paceline/engine/collectives/algorithms/subtrees.h"

namespace paceline {

class HierarchyRank {
 protected:
  // Requires: both outlive this object; spec.hosts.
  HierarchyRank(ScheduleBuilder& builder, const ScheduleSpec& spec)
      : builder_(builder),
        spec_(spec),
        hosts_(*spec.hosts),
        host_(host_of(spec.rank)),
        subtrees_(subtrees_by_host(hosts_)) {}

  int num_hosts() const { return static_cast<int>(hosts_.size()); }
  int host_of(int rank) const { return hosts_.host_of[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& members(int host) const {
    return hosts_.members[static_cast<std::size_t>(host)];
  }
  const std::vector<Subtree>& own_subtrees() const {
    return subtrees_[static_cast<std::size_t>(host_)];
  }

  // All hosts' subtrees in rank order.
  std::vector<std::pair<Subtree, int>> all_subtrees() const {
    std::vector<std::pair<Subtree, int>> all;
    for (int host = 0; host < num_hosts(); ++host) {
      for (const Subtree& tree : subtrees_[static_cast<std::size_t>(host)]) {
        all.emplace_back(tree, host);
      }
    }
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
    return all;
  }

  static std::vector<Operand> contributions(const Subtree& tree, Place place) {
    std::vector<Operand> operands;
    for (int rank = tree.first; rank < tree.first + tree.num_ranks; ++rank) {
      operands.push_back({place, rank});
    }
    return operands;
  }

  ScheduleBuilder& builder_;
  const ScheduleSpec& spec_;
  const Hosts& hosts_;
  const int host_;
  const std::vector<std::vector<Subtree>> subtrees_;  // by host
};

}  // namespace paceline
