#pragma once

// The resources that ranks need from the kernel: file descriptors, memory of their NUMA nodes, and
// a port that no other process gets.

#include <cstdint>
#include <vector>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// Raises the soft limit of open files to what the launcher needs for so many ranks. Error(kSystem)
// names the number needed when the hard limit is too low.
void require_descriptors(int num_local_ranks);

// Gives a rank the limit that the user set. To be called before exec.
void restore_descriptor_limit();

// Takes the calling process's memory from the given NUMA nodes while they have any, then from
// others. (A strict policy would end a rank where a slower page would have done.) The policy is
// kept across fork and exec. No nodes: nothing is changed.
//
// False when the kernel does not allow it; many containers forbid the call. Pages then come from
// the node of the core that first touches them, which for a bound rank is one of these nodes until
// they are full.
bool prefer_memory_of(const std::vector<int>& numa_nodes);

// A TCP port kept for rank 0: bound but not listening. The kernel gives it to no other process, yet
// a socket that also sets SO_REUSEADDR (as every c10d store does) may bind it and listen. There is
// no moment in which the port is free.
struct ReservedPort {
  Fd socket;  // keep it open as long as the port is needed
  std::uint16_t port = 0;
};

// Port 0: a free one. Error(kSystem) names a port that is taken, and how to find out by which
// process.
ReservedPort reserve_port(std::uint16_t port);

}  // namespace paceline::launcher
