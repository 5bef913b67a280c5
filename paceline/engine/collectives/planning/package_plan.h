#pragma once

// Whether the ranks of a group in shared memory can add up per package first, which they do where
// it was asked for (PlanningOptions::by_package, algorithms/by_package.h). Pure functions of what
// all ranks agree on, so that all choose alike. Thread safety: pure.

#include <string>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/selection/planner.h"

namespace paceline {

class PackagePlan {
 public:
  static constexpr int kUnknown = -1;

  // `package_of`: each rank's package, kUnknown where it may run on several, or that is not known.
  // `members` are the ranks in the world, for messages; none: it is the world.
  explicit PackagePlan(const std::vector<int>& package_of, const std::vector<int>& members = {});

  // Whether sums by package are possible: all packages are known, there are several, and each has a
  // power of two of neighbouring ranks, at least two, and all the same number.
  bool is_possible() const { return why_not_.empty(); }
  // In place of hosts. Requires: is_possible().
  const Hosts& packages() const { return packages_; }
  // For calls that a staging area does not hold anyway; tiny ones are never asked about.
  bool chooses(Op op) const;
  // Why, for people; empty where packages make no difference.
  std::string explain(const PlanRequest& request) const;

 private:
  std::string why_not(const std::vector<int>& package_of, const std::vector<int>& members) const;

  Hosts packages_;
  std::string why_not_;
};

}  // namespace paceline
