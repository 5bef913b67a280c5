#pragma once

// Sums of ranks on several packages, each package's first: carries out algorithms/by_package.h in
// pieces whose partial sums fit into the staging areas.
//
//   in place  on symmetric memory: inputs are read and results written where they lie. A phase per
//             piece: while a piece's sums are added up between packages, those of the next are made.
//   staged    for any other memory: inputs and results go by way of the staging area, too.
//
// Thread safety: none; one executor owns it.

#include <span>
#include <vector>

#include "paceline/collectives/backends/paceline/group_share.h"
#include "paceline/collectives/backends/paceline/shared_schedules.h"
#include "paceline/collectives/backends/paceline/symmetric_regions.h"
#include "paceline/collectives/kernels/reduce.h"

namespace paceline {

class ByPackageExecutor {
 public:
  // All outlive this object. Requires: packages as build_by_package() does.
  ByPackageExecutor(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions,
                    SharedSchedules& schedules, const Hosts& packages);

  // Requires: serves_by_package(operation.call.op), and the ranks have entered, with places: for
  // run_in_place() such as regions.hold_all() accepts.
  void run_in_place(const SharedOperation& operation);
  void run_staged(const SharedOperation& operation);

 private:
  struct Piece;

  Piece begin_piece(const SharedOperation& operation, std::size_t begin, bool is_staged);
  void copy_in(const Piece& piece);
  void add_up(const Piece& piece);
  void combine(const Piece& piece);
  void fetch(const Piece& piece);
  void reduce(const Piece& piece, const Schedule& schedule, const Step& step);
  const std::byte* address(const Piece& piece, const Operand& operand) const;
  void aim(const Piece& piece, const Place& to);
  std::byte* partials(const Piece& piece, int rank) const;
  const Schedule& schedule_for(const Piece& piece);

  const Mesh& mesh_;
  GroupShare& share_;
  const SymmetricRegions& regions_;
  SharedSchedules& schedules_;
  const Hosts& packages_;
  const std::vector<int>& own_package_;  // its ranks
  // Of the reduce under way.
  std::vector<ReduceSource> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace paceline
