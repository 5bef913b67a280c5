#pragma once

// What init_process_group() settles for a new job: how many threads each rank computes with, and
// how far the hosts' clocks are apart.

#include <chrono>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// How far the monotonic clock of this rank's host is from that of rank 0's, for putting what
// several hosts did on one clock. Wall clocks play no part: a host whose date is wrong is as good
// as any other.
//
// One rank of each host sends rank 0 small messages that come back with rank 0's time. Of the
// fastest round trip, rank 0 answered somewhere between sending and receiving; taking the middle is
// wrong by half the round trip at most (Cristian, "Probabilistic clock synchronization", 1989).
// Clocks drift apart afterwards, by some microseconds a second when nothing disciplines them.
struct ClockOffset {
  std::chrono::nanoseconds offset{};  // rank 0's clock minus this one's
  std::chrono::nanoseconds error{};   // at most, one way or the other
};

// Collective. Zero for the ranks of rank 0's host. Errors: those of messages.
ClockOffset measure_clock_offset(ProcessGroup& group);

// How many threads a rank should compute with when its launcher leaves that open: mpirun and srun
// start ranks side by side, and every one of them would take all cores that it sees. `paceline run`
// divides them before the ranks start; here the ranks of a host do it themselves, by the rule that
// a core is divided among those that may run on it. Ranks that are bound to cores of their own keep
// them.

// The share of rank `self`, at least 1; `cores`: what each rank of the host may run on, as numbers
// of physical cores. Pure.
int thread_share(const std::vector<std::vector<int>>& cores, std::size_t self);

// Collective. For ranks that such a launcher started, with others on the host: the share becomes
// this process's OMP_NUM_THREADS, and that of OpenMP if it is loaded already, unless the user has
// set the variable; and PACELINE_THREAD_SHARE, which says that no user has. What began to compute
// before keeps its threads. Error(kSystem) when the machine cannot be read, and those of
// collectives.
void share_cores(ProcessGroup& group, const std::string& launcher);

}  // namespace paceline
