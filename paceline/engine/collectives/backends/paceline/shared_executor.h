#pragma once

// Runs collectives among ranks that map each other's memory, the way that shared_route.h chooses:
//
//   in place    when all ranks' buffers are in symmetric memory: peers' input is read and peers'
//               output written where they lie. All arrive, all finish;
//   staged      for any other memory, piece by piece, and for tiny calls;
//   by package  large sums in either memory, where the ranks are on several packages and that is
//               worth it (planning/package_plan.h).
//
// Thread safety: none; calls come one at a time.

#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/collectives/backends/paceline/shared_plans.h"
#include "paceline/engine/collectives/backends/paceline/shared_runner.h"
#include "paceline/engine/collectives/backends/paceline/shared_schedules.h"
#include "paceline/engine/collectives/backends/paceline/symmetric_regions.h"
#include "paceline/engine/collectives/planning/package_plan.h"
#include "paceline/engine/collectives/planning/planner.h"
#include "paceline/engine/transport/mesh.h"

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
  void run_tiny(const SharedOperation& operation, const Schedule& schedule);
  void run_small(const SharedOperation& operation, const SharedPlan& plan);
  void run_large(const SharedOperation& operation, const SharedRoute& route);
  void run_in_place(const SharedOperation& operation, const SharedRoute& route);
  void run_staged(const SharedOperation& operation, const SharedRoute& route);
  void run_pieces_by_package(const SharedOperation& operation, bool is_staged);

  ScheduleSpec spec_of(const Collective& call, std::size_t count) const;
  SharedPiece::Copy copy_for(const SharedOperation& operation) const;

  const int rank_;
  const std::optional<PackagePlan> packages_;
  const SharedTerms terms_;
  GroupShare& share_;
  SymmetricRegions regions_;
  SharedPlans plans_;
  SharedSchedules schedules_;  // of pieces, and in place
  SharedRunner runner_;
  std::vector<std::byte*> visited_;
};

}  // namespace paceline
