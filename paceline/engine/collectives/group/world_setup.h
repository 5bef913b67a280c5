#pragma once

// Setting up the groups with which a job begins: the facts that init_process_group() determines for
// a new job (the number of threads with which each rank computes, and the offsets between the
// hosts' clocks), and groups that another library has decided to form (torch.distributed, through
// the Python wheel).

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/store/store.h"

namespace paceline {

// The difference between the monotonic clocks of rank 0's host and of this rank's host. With it,
// the events of several hosts can be shown on one time axis. Wall clocks are not used, so a host
// whose date is wrong does no harm.
//
// One rank of each other host sends messages to rank 0, and rank 0 answers each with its time. The
// fastest round trip is used: rank 0 answered at some moment between sending and receiving, so the
// middle of that interval is wrong by at most half the round trip (Cristian, "Probabilistic clock
// synchronization", 1989). Afterwards the clocks drift apart, by some microseconds per second if
// nothing disciplines them.
struct ClockOffset {
  std::chrono::nanoseconds offset{};  // rank 0's clock minus this host's
  std::chrono::nanoseconds error{};   // the largest error, in either direction
};

// Collective. The offset is 0 on ranks of rank 0's host. Errors: those of messages.
ClockOffset measure_clock_offset(ProcessGroup& group);

// The number of threads with which a rank computes if its launcher does not set it: mpirun and srun
// start ranks side by side, and every rank would use all cores that it sees. `paceline run` divides
// the cores before the ranks start; under other launchers the ranks of a host divide them by
// share_cores(). The rule is the same: a core is divided among the ranks that may run on it. Ranks
// that are bound to cores of their own keep them.
//
// Returns the share of rank `self`, at least 1. `cores` are the physical cores on which each rank
// of the host may run. Pure.
int thread_share(const std::vector<std::vector<int>>& cores, std::size_t self);

// Collective. If mpirun or srun started this rank (`launcher`) and the host has other ranks, sets
// OMP_NUM_THREADS to thread_share(), and OpenMP's number of threads if OpenMP is already loaded. A
// value that the user has set is kept. PACELINE_THREAD_SHARE marks that this function set the
// variable, not the user. Libraries that have already computed keep their number of threads.
// Errors: kSystem when the cores of the machine cannot be read; those of collectives.
void share_cores(ProcessGroup& group, const std::string& launcher);

class FailureDomain;

// A group that another library has decided to form, and that is a part of that library's world:
// torch.distributed names the members and brings a store, in which only these members meet.
struct PartOfWorld {
  std::string name;              // names the group in messages; the same on all members
  std::vector<int> world_ranks;  // the members' ranks in the world, in order
  int rank = 0;                  // this process's rank in the group
  int world_size = 0;            // ranks of the whole world
  // Shared by the members only, or at least by no other group: the keys do not contain the group's
  // name. The members must trust the store, because the group's secret travels through it.
  std::shared_ptr<Store> store;
  GroupOptions group;
  std::shared_ptr<FailureDomain> failures;  // tells groups of each other's failures; may be null
};

// Collective over the members: forms the group. It need not be made from another group of this
// process. Members need not have been started by any launcher. Where `group` keeps a default, the
// variables of init_process_group() apply, except PACELINE_TIMELINE_DIR. If the launcher's
// variables describe this process with the same rank and world size, the operations are recorded
// for that job. Errors: those of init_process_group(), within the group's timeout.
std::shared_ptr<ProcessGroup> init_part_of_world(const PartOfWorld& part);
std::shared_ptr<FailureDomain> make_failure_domain();

}  // namespace paceline
