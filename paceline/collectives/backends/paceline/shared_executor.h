#pragma once

// Runs collectives among ranks that map each other's memory, the way that shared_route.h chooses:
//
//   zero-copy  when all ranks' buffers are in symmetric memory (zero_copy.h);
//   staged     for any other memory, and for tiny calls (staged.h);
//   by package  large sums in either memory, where the ranks are on several packages and that is
//              worth it (planning/package_plan.h, by_package_executor.h).
//
// Thread safety: none; calls come one at a time.

#include <memory>
#include <optional>
#include <string>

#include "paceline/collectives/backends/paceline/by_package_executor.h"
#include "paceline/collectives/backends/paceline/group_share.h"
#include "paceline/collectives/backends/paceline/shared_route.h"
#include "paceline/collectives/backends/paceline/shared_schedules.h"
#include "paceline/collectives/backends/paceline/staged.h"
#include "paceline/collectives/backends/paceline/symmetric_regions.h"
#include "paceline/collectives/backends/paceline/zero_copy.h"
#include "paceline/collectives/planning/package_plan.h"
#include "paceline/collectives/planning/planner.h"
#include "paceline/transport/mesh.h"

namespace paceline {

class SharedExecutor {
 public:
  // `packages` as agreed on, with the same on every rank. Requires: mesh and share outlive this
  // object.
  SharedExecutor(Mesh& mesh, GroupShare& share, std::shared_ptr<SymmetricRegistry> registry,
                 std::optional<PackagePlan> packages);
  SharedExecutor(const SharedExecutor&) = delete;
  SharedExecutor& operator=(const SharedExecutor&) = delete;

  void run(const Collective& call, const Fingerprint& fingerprint, const WaitOptions& wait);
  std::string explain(const PlanRequest& request) const { return explain_route(terms_, request); }
  // Collective.
  std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages, Deadline deadline) {
    return regions_.allocate(bytes, pages, deadline);
  }
  // Of the visit that was run last: every rank's buffer, or none of them.
  const std::vector<std::byte*>& visited() const { return visited_; }
  // Whether this rank's memory lies in what allocate() gave, of this group or one it was made of.
  bool is_symmetric(const void* data, std::size_t bytes) {
    return regions_.find(data, bytes).region >= 0;
  }

 private:
  void enter_visit(const SharedOperation& operation);
  void run_tiny(const SharedOperation& operation);
  void run_small(const SharedOperation& operation);
  void run_counted(const SharedOperation& operation);
  void run_large(const SharedOperation& operation, bool is_by_package);

  const std::optional<PackagePlan> packages_;
  const SharedTerms terms_;
  GroupShare& share_;
  SymmetricRegions regions_;
  SharedSchedules schedules_;
  ZeroCopy zero_copy_;
  Staged staged_;
  std::vector<std::byte*> visited_;
  std::optional<ByPackageExecutor> by_package_;  // where the plan has a way by package
};

}  // namespace paceline
