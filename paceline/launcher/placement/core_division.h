#pragma once

// Divides cores among ranks that do equal work. The slowest rank sets the pace of all, so the
// smallest share should be large. A rank should also not straddle two parts of the machine
// (packages, NUMA nodes, caches, clusters), because access to the memory of another node or to the
// lines of another cache is slower.
//
// The levels are handled from the largest parts to the smallest. At each level, the division is the
// first in this list that leaves the smallest share large enough (80% of an even share for packages
// and NUMA nodes, 90% for caches and clusters):
//   1. every rank lies within one part; D'Hondt's method assigns ranks to parts, which makes the
//      smallest share as large as possible (a part that is too small for a rank stays idle);
//   2. every rank gets whole parts, if there are more parts than ranks;
//   3. no division at this level; the next level decides.
// Within the smallest parts cores are split evenly, in hardware order. A share that is larger than
// the smallest one and straddles parts is cut down to one of these parts, if that part is large
// enough.
//
// Thread safety: pure functions.

#include <array>
#include <vector>

#include "paceline/engine/core/system/topology.h"

namespace paceline::launcher {

enum class Level { kPackage, kNuma, kCache, kCluster };
inline constexpr std::array kLevels = {Level::kPackage, Level::kNuma, Level::kCache,
                                       Level::kCluster};

// The name of a level: "package", "NUMA node", "cache" or "cluster".
const char* name_of(Level level);
// The number of the part of the machine to which a core belongs at that level.
int part_of(const Core& core, Level level);

using Cores = std::vector<Core>;

// The parts in hardware order, each with its cores.
std::vector<Cores> parts_at(const Cores& cores, Level level);

// Returns one share for each rank. No share is empty, and no core is in two shares. Requires: 1 <=
// num_ranks <= number of cores.
std::vector<Cores> divide_cores(const Cores& cores, int num_ranks);

// Divides `num_ranks` seats among parts of these sizes by D'Hondt's method: the smallest quotient
// of size and seats is as large as possible. Some parts may get no seat.
std::vector<int> seats_by_size(const std::vector<int>& sizes, int num_ranks);

// Gives each rank contiguous whole parts, in shares as even as whole parts allow. Shares may
// straddle larger parts. Requires: at least as many parts as ranks.
std::vector<Cores> whole_parts(const std::vector<Cores>& parts, int num_ranks);

// Cuts shares that consist of whole parts at `level`. A share that is larger than the smallest one,
// and that straddles parts at this or a larger level, is cut down to one of these parts, if that
// part is at least as large as the smallest share.
std::vector<Cores> without_straddling(std::vector<Cores> shares, Level level);

// The cores on which equal work should run: on a hybrid processor only those of the faster kinds,
// if their speed outweighs the number of the other cores. Threads that wait for each other run at
// the speed of the slowest core.
Cores worthwhile_cores(const Cores& cores, int num_ranks);

}  // namespace paceline::launcher
