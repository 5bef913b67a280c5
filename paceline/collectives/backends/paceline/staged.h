#pragma once

// Collectives on any memory, by way of the staging areas: what peers read is copied there, piece by
// piece. One phase per piece, two when there is a reduce to hand around.
//
// Thread safety: none; one executor owns it.

#include <vector>

#include "paceline/collectives/backends/paceline/group_share.h"
#include "paceline/collectives/backends/paceline/shared_schedules.h"

namespace paceline {

class Staged {
 public:
  // All outlive this object.
  Staged(const Mesh& mesh, GroupShare& share, SharedSchedules& schedules);

  // A whole call. Requires: the ranks have entered.
  void run(const SharedOperation& operation);
  // The same with blocks of unequal counts: each has room for the longest piece.
  void run_blocks(const SharedOperation& operation);

  // The elements [begin, begin + count): copies in what others read of this rank; with `schedule`
  // for `count` and, for run_piece(), once all ranks have done so and met.
  const Schedule& schedule_for(const SharedOperation& operation, std::size_t count);
  void copy_in(const SharedOperation& operation, const Schedule& schedule, std::size_t begin,
               std::size_t count);
  void run_piece(const SharedOperation& operation, const Schedule& schedule, std::size_t begin,
                 std::size_t count);

 private:
  void carry_out(const SharedOperation& operation, const Schedule& schedule, const std::byte* input,
                 std::byte* output);

  const Mesh& mesh_;
  GroupShare& share_;
  SharedSchedules& schedules_;
  // For the reduce under way: every rank's contribution, and where the result goes.
  std::vector<const std::byte*> contributions_;
  std::vector<std::byte*> targets_;
};

}  // namespace paceline
