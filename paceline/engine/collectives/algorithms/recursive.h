#pragma once

// Recursive halving and doubling: neighbours first, then pairs of neighbours, and so on, so that
// every sum on the way is an aligned subtree of ranks and the promised order is kept (the usual
// textbook order, farthest first, would not).
//
//   doubling  all_reduce: in round k a rank exchanges its whole sum with the rank 2^k away;
//             ceil(log2 p) rounds of n bytes: for small n. all_gather: in round k a rank gets the
//             2^k blocks that follow its own (Bruck et al., "Efficient algorithms for all-to-all
//             communications in multiport message-passing systems", 1997); any p.
//   halving   reduce_scatter and all_reduce: in round k two neighbouring sums of 2^k ranks are
//             added, half by one rank and half by the other, so a rank sends n/2, n/4, ...; then
//             all_reduce doubles back what it halved. 2 log2 p messages and about 2n bytes
//             (Rabenseifner, "Optimization of collective reduction operations", 2004).
//
// With ranks left over beyond the largest power of two, they add up among themselves in the same
// way and hand their sums to the power-of-two part, which finishes; they get the result directly.
// A partial sum of a 16-bit type is sent in float32, twice the bytes.

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"

namespace paceline {

// Pure. all_reduce, all_gather and all_gather_v (blocks in a row).
Schedule build_doubling(const ScheduleSpec& spec);
// Pure. all_reduce and reduce_scatter (blocks in a row).
Schedule build_halving(const ScheduleSpec& spec);

// The ranks of a reduction, in order, and where their contributions and results are; so that a
// hierarchy can run the same rounds between hosts.
struct Team {
  std::vector<int> ranks;
  int index = 0;               // this rank's position
  std::size_t leaf_ranks = 1;  // that each contribution sums up
  Place leaf;                  // this rank's contribution; partial if leaf_ranks > 1
  Place result;
  std::size_t scratch_base = 0;  // both free from here on
  std::size_t partial_base = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  bool leaf_is_partial() const { return leaf.space == Space::kPartial; }
};

// The whole sum of `count` into every rank's result.
void add_doubling_all_reduce(ScheduleBuilder& builder, const Team& team, std::size_t count);
void add_halving_all_reduce(ScheduleBuilder& builder, const Team& team, std::size_t count);

}  // namespace paceline
