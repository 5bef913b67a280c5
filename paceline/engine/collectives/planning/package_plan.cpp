#include "paceline/engine/collectives/planning/package_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/collectives/algorithms/by_package.h"
#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/core/error.h"

namespace paceline {
namespace {

std::string megabytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
}

}  // namespace

PackagePlan::PackagePlan(const std::vector<int>& package_of, const std::vector<int>& members)
    : packages_(Hosts::from(package_of)), why_not_(why_not(package_of, members)) {}

std::string PackagePlan::why_not(const std::vector<int>& package_of,
                                 const std::vector<int>& members) const {
  const auto unknown = std::find(package_of.begin(), package_of.end(), kUnknown);
  if (unknown != package_of.end()) {
    const auto rank = static_cast<std::size_t>(unknown - package_of.begin());
    const int in_world = members.empty() ? static_cast<int>(rank) : members[rank];
    return fmt::format("{} may run on several packages, or its package is not known",
                       rank_name(static_cast<int>(rank), in_world));
  }
  if (packages_.size() == 1) return "all ranks are on one package";
  if (ranks_of_equal_subtrees(subtrees_by_host(packages_)) < 2) {
    return fmt::format(
        "the ranks are on {} packages, but not as equal powers of two of neighbouring ranks",
        packages_.size());
  }
  return "";
}

bool PackagePlan::chooses(Op op) const { return is_possible() && serves_by_package(op); }

std::string PackagePlan::explain(const PlanRequest& request) const {
  if (!serves_by_package(request.op)) return "";
  if (!is_possible()) return fmt::format("not by package: {}\n", why_not_);
  const auto bytes = bytes_between_packages(request.op, request.dtype, request.count, packages_);
  return fmt::format(
      "{} packages of {} ranks: each adds up its own ranks first; between packages {} that way, {} "
      "directly (not measured on such a machine)\n",
      packages_.size(), packages_.members.front().size(), megabytes(bytes.by_package),
      megabytes(bytes.direct));
}

}  // namespace paceline
