#pragma once

// Collectives on symmetric memory: peers' input is read in place, results of a reduce are written
// straight into the peers' output, and so are the blocks of an all_gather or all_to_all, with equal
// or unequal counts, and a share of a large broadcast by its root. Two phases: everybody has come
// (the executor's enter), everybody is done.
//
// Thread safety: none; one executor owns it.

#include <vector>

#include "paceline/collectives/backends/paceline/group_share.h"
#include "paceline/collectives/backends/paceline/shared_schedules.h"
#include "paceline/collectives/backends/paceline/symmetric_regions.h"

namespace paceline {

class ZeroCopy {
 public:
  // All outlive this object.
  ZeroCopy(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions,
           SharedSchedules& schedules);

  // Requires: the ranks have entered, with places that regions.hold_all() accepts.
  void run(const SharedOperation& operation);

 private:
  using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);

  void run_direct(const SharedOperation& operation);
  void broadcast_together(const SharedOperation& operation);
  void hand_out(const SharedOperation& operation);
  void reduce_own_block(const SharedOperation& operation);
  BlockTable blocks_of(const SharedOperation& operation) const;
  ScheduleSpec spec_of(const SharedOperation& operation, const BlockTable& blocks) const;
  Copy copy_for(const SharedOperation& operation) const;
  void reduce_and_deliver(const SharedOperation& operation, const Schedule& schedule,
                          const Step& step);

  const Mesh& mesh_;
  GroupShare& share_;
  const SymmetricRegions& regions_;
  SharedSchedules& schedules_;
  // For the reduce under way: every rank's contribution, and where the result goes.
  std::vector<const std::byte*> contributions_;
  std::vector<std::byte*> targets_;
};

}  // namespace paceline
