#pragma once

// The resources that ranks need from the kernel: file descriptors, memory on their NUMA nodes, and
// a port that no other process can take.

#include <cstdint>
#include <vector>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// Raises the soft limit of open files to the number that the launcher needs for this many ranks.
// Error(kSystem) names the number needed when the hard limit is too low.
void require_descriptors(int num_local_ranks);

// Restores the limit that the user had set. Call this in the child before exec.
void restore_descriptor_limit();

// Takes the calling process's memory from the given NUMA nodes while they have free memory, then
// from other nodes. (Under a strict policy a rank would be killed instead of getting slower
// memory.) The policy is kept across fork and exec. Changes nothing if `numa_nodes` is empty.
//
// Returns false if the kernel does not allow it; many containers forbid the call. Pages are then
// allocated on the node of the core that first touches them. For a bound rank that node is one of
// `numa_nodes`, until these are full.
bool prefer_memory_of(const std::vector<int>& numa_nodes);

// A TCP port kept for rank 0: bound but not listening. The kernel gives it to no other process, yet
// a socket that also sets SO_REUSEADDR (as every c10d store does) may bind it and listen. So the
// port is never free in between.
struct ReservedPort {
  Fd socket;  // keep it open as long as the port is needed
  std::uint16_t port = 0;
};

// Port 0 reserves a free port. Error(kSystem) names a port that is in use, and the command that
// finds the process that uses it.
ReservedPort reserve_port(std::uint16_t port);

}  // namespace paceline::launcher
