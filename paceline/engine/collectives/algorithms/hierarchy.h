#pragma once

// The hierarchy: shared memory inside a host, messages between hosts; each byte crosses the network
// once for a host, not once for a rank, and the ranks of a host share that work.
//
// A buffer is cut into *lanes*, one for each rank of the smallest host; the rank at position l of
// every host carries lane l. For all_reduce the ranks put their input into scratch; the carrier of
// a lane adds up its host's contributions, exchanges them with the lane's carriers on the other
// hosts, and leaves the result in its scratch, from where the host's ranks fetch it.
//
// The order of the sum is by ranks, not by hosts: what a host adds up are the largest whole
// subtrees of the promised tree that lie in it. Where each host has a power of two of neighbouring
// ranks that is one partial sum per host; for 3 neighbouring ranks two; for ranks dealt out in turn
// one for each rank, and nothing is saved. Partial sums of 16-bit types travel in float32.
//
// Between up to 4 hosts a carrier sends straight to the others, n(h-1)/h bytes of each lane there
// and back; with more hosts of one power-of-two partial each, it halves and doubles (recursive.h).
// broadcast goes from host to host in a binomial tree.
//
// all_gather and reduce_scatter have blocks instead of lanes: hierarchy_blocks.h.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// all_reduce, broadcast, reduce, all_gather(_v) and reduce_scatter(_v). Pure. Requires: spec.hosts.
Schedule build_hierarchy(const ScheduleSpec& spec);

}  // namespace paceline
