#pragma once

// Where the calling process's memory comes from: the given NUMA nodes while they have any, others
// after that. (A strict policy would end a rank where a slower page would have done.) The policy is
// kept across fork and exec.

#include <vector>

namespace paceline::launcher {

// False when the kernel does not allow it; many containers forbid the call. Pages then come from
// the node of the core that first touches them, which is the same node for a bound rank until it
// is full. No nodes: nothing is changed.
bool prefer_memory_of(const std::vector<int>& numa_nodes);

}  // namespace paceline::launcher
