#pragma once

// Divides cores among ranks of equal work. The slowest rank sets the pace of all, so the smallest
// share counts; and a rank should not straddle two parts of the machine (packages, NUMA nodes,
// caches, clusters), because memory of another node and lines of another cache cost it time.
//
// Level by level, from the largest parts to the smallest, the first of these that leaves the
// smallest share large enough (80% of an even division's for packages and NUMA nodes, 90% for
// caches and clusters) is taken:
//   1. every rank within one part; parts get ranks by D'Hondt's method, which makes the smallest
//      share as large as it can be (a part too small for a rank stays idle);
//   2. every rank with whole parts, when there are more parts than ranks;
//   3. this level is ignored.
// Within the smallest parts cores are split evenly, in hardware order. A share that came out larger
// than the smallest one and straddles parts is cut down to one of them, if that is large enough.
//
// Pure.

#include <array>
#include <vector>

#include "paceline/engine/core/system/topology.h"

namespace paceline::launcher {

enum class Level { kPackage, kNuma, kCache, kCluster };
inline constexpr std::array kLevels = {Level::kPackage, Level::kNuma, Level::kCache,
                                       Level::kCluster};

// "package", "NUMA node", "cache", "cluster".
const char* name_of(Level level);
// Which part of the machine a core belongs to at that level.
int part_of(const Core& core, Level level);

using Cores = std::vector<Core>;

// The parts in hardware order, each with its cores.
std::vector<Cores> parts_at(const Cores& cores, Level level);

// One share per rank, none empty, no core twice. Requires: 1 <= num_ranks <= number of cores.
std::vector<Cores> divide_cores(const Cores& cores, int num_ranks);

// `num_ranks` seats for parts of these sizes by D'Hondt's method: the smallest size / seats is as
// large as possible. Some parts may get none.
std::vector<int> seats_by_size(const std::vector<int>& sizes, int num_ranks);

// Whole parts for each rank, contiguous, in shares as even as whole parts allow; those may straddle
// larger parts. Requires: at least as many parts as ranks.
std::vector<Cores> whole_parts(const std::vector<Cores>& parts, int num_ranks);

// Cuts shares of whole parts at `level`: a share that is larger than the smallest one, which sets
// the pace, and straddles parts at this or a larger level is cut down to one of them, if that is
// large enough.
std::vector<Cores> without_straddling(std::vector<Cores> shares, Level level);

// The cores on which equal work should run: on a hybrid processor only those of the faster kinds,
// when their speed outweighs the number of the others. Threads that wait for each other run at the
// speed of the slowest core.
Cores worthwhile_cores(const Cores& cores, int num_ranks);

}  // namespace paceline::launcher
