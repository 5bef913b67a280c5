#pragma once

// Groups that another library has decided to form (torch.distributed, through the Python wheel).
//
// Thread safety: values.

#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/store/store.h"

namespace paceline {

class FailureDomain;

// A group that another library has decided to form, and that is a part of that library's world:
// torch.distributed names the members and brings a store, in which only they meet.
struct PartOfWorld {
  std::string name;              // names the group in messages; the same on all members
  std::vector<int> world_ranks;  // the members' ranks in the world, in order
  int rank = 0;                  // this process's place among the members
  int world_size = 0;            // ranks of the whole world
  // Shared by the members only, or at least by no other group: the keys contain no name. The
  // members trust it, because the group's secret travels through it.
  std::shared_ptr<Store> store;
  GroupOptions group;
  std::shared_ptr<FailureDomain> failures;  // joins the groups of this process; null for none
};

// Collective over the members: forms the group. Groups of one process need not be made from one
// another. Members need not have been started by any launcher. Where `group` keeps a default, the
// variables of init_process_group() apply, except PACELINE_TIMELINE_DIR. If the launcher's
// variables describe this process with the same rank and world size, the operations are recorded
// for that job. Errors: those of init_process_group(), within the group's timeout.
std::shared_ptr<ProcessGroup> init_part_of_world(const PartOfWorld& part);
std::shared_ptr<FailureDomain> make_failure_domain();

}  // namespace paceline
