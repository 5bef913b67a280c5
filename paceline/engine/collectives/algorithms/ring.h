#pragma once

// The ring: every rank sends to the next and receives from the one before, p - 1 times, one chunk
// at a time. n(p-1)/p bytes sent per rank for all_gather and for reduce_scatter, twice that for
// all_reduce (Patarasuk and Yuan, 2009), and no link carries more than its two ends send: for large
// n on many ranks whose network cannot carry traffic between all pairs.
//
// all_gather keeps all promises. A ring's sum does not: chunk c is added up in the order c+1, c+2,
// ..., c. It has the same bits on every rank and in every run with that number of ranks, but not
// those of the other algorithms; so it must be asked for.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// Pure. all_gather, all_gather_v, reduce_scatter, reduce_scatter_v and all_reduce.
Schedule build_ring(const ScheduleSpec& spec);

}  // namespace paceline
