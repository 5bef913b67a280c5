#pragma once

// Binomial trees: ceil(log2 p) messages one after the other, each of the whole buffer. For small n
// on many ranks, where the number of messages counts.
//
// broadcast: a rank that has the buffer hands it to the rank half of the rest away (ranks counted
// from the root). reduce: rank r adds up what covers [r, r + 2^k) and hands it to r - 2^k, so that
// every partial sum is a subtree of the promised order; rank 0 passes the result on to another
// root.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// Broadcast and reduce. Pure.
Schedule build_tree(const ScheduleSpec& spec);

}  // namespace paceline
