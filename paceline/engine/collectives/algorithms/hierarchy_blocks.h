#pragma once

// The hierarchy's half without lanes: all_gather and reduce_scatter, with equal or unequal counts.
//
// What a rank gives to the ranks of another host, or they to it, goes through one rank there, which
// their positions on their hosts say. all_gather: a rank sends its block to one rank of each other
// host, from whose scratch the ranks of that host fetch it. reduce_scatter: for each rank of
// another host one rank of this host adds up what its host gives to that rank, subtree by subtree,
// and sends the sums. A rank that has most of the elements so does most of its host's sending, or
// gets most of it.

#include <span>

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// all_gather(_v) and reduce_scatter(_v). Pure. Requires: spec.hosts.
Schedule build_hierarchy_of_blocks(const ScheduleSpec& spec);

// The most elements of each block, at least 1, that an operation with unequal counts may take at a
// time (BlockTable::piece()) so that every rank's scratch has at most `room` elements. Requires:
// `room` for one element of each block and of each contribution from another host.
std::size_t hierarchy_block_count(Op op, std::span<const std::size_t> counts, const Hosts& hosts,
                                  std::size_t room);

}  // namespace paceline
