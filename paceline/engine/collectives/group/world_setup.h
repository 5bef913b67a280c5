#pragma once

// What init_process_group() settles for a new job: with how many threads each rank computes, and
// how far apart the hosts' clocks are.

#include <chrono>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// The difference between the monotonic clocks of rank 0's host and of this rank's, which puts the
// events of several hosts on one clock. Wall clocks play no part: a host whose date is wrong is as
// good as any other.
//
// One rank of each host sends rank 0 small messages that come back with rank 0's time. In the
// fastest round trip, rank 0 answered somewhere between sending and receiving; assuming the middle
// is wrong by at most half the round trip (Cristian, "Probabilistic clock synchronization", 1989).
// Clocks drift apart afterwards, by some microseconds a second when nothing disciplines them.
struct ClockOffset {
  std::chrono::nanoseconds offset{};  // rank 0's clock minus this one's
  std::chrono::nanoseconds error{};   // the largest error, in either direction
};

// Collective. The offset is 0 on ranks of rank 0's host. Errors: those of messages.
ClockOffset measure_clock_offset(ProcessGroup& group);

// The number of threads with which a rank computes if its launcher leaves that open: mpirun and
// srun start ranks side by side, and every rank would use all cores that it sees. `paceline run`
// divides them before the ranks start; here the ranks of a host do it themselves, by the rule that
// a core is divided among the ranks that may run on it. Ranks that are bound to cores of their own
// keep them.
//
// The share of rank `self`, at least 1. `cores` are the physical cores on which each rank of the
// host may run. Pure.
int thread_share(const std::vector<std::vector<int>>& cores, std::size_t self);

// Collective. If such a launcher started this rank, and the host has other ranks, the share becomes
// this process's OMP_NUM_THREADS, and OpenMP's number of threads if OpenMP is already loaded,
// unless the user has set the variable. PACELINE_THREAD_SHARE is set as well, to mark that it was
// not the user. Libraries that computed before keep their threads. Error(kSystem) when the machine
// cannot be read, and those of collectives.
void share_cores(ProcessGroup& group, const std::string& launcher);

}  // namespace paceline
