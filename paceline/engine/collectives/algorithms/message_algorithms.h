#pragma once

// The schedules over messages, one for each algorithm: what each is for, and what it costs for n
// bytes on p ranks. Each family of algorithms has a source file (direct.cpp, tree.cpp, ring.cpp,
// recursive.cpp, hierarchy.cpp), whose first comment explains how the family works. All functions
// are pure. Requires: 0 <= rank, root < world_size.

#include <span>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"

namespace paceline {

// Every range travels directly from the rank that has it to the rank that needs it. Supports every
// operation except send and receive. An all_reduce takes 2(p-1) messages and sends 2n(p-1)/p bytes
// per rank, the bandwidth bound (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms",
// 2009).
Schedule build_direct(const ScheduleSpec& spec);
// all_reduce for small n: every rank sends its whole buffer to every other rank and reduces all p
// buffers itself. Each rank sends p-1 messages and n(p-1) bytes.
Schedule build_one_shot_all_reduce(const ScheduleSpec& spec);

// The elements [begin, end) that `rank` reduces, in a buffer of `count` elements. All chunks but
// the last ones have equal lengths, and all begin at multiples of a cache line in every type, so
// that two ranks never write to the same line.
struct Chunk {
  std::size_t begin, end;
  std::size_t count() const { return end - begin; }
};
Chunk chunk_of(std::size_t count, int rank, int world_size);

// Binomial trees. Supports broadcast and reduce, for small n on many ranks, where the number of
// messages determines the time: ceil(log2 p) messages follow each other, each with the whole
// buffer. A reduce to a root other than rank 0 needs one more message.
Schedule build_tree(const ScheduleSpec& spec);

// A pipelined chain. Supports broadcast, for large n. With c chunks it takes the time of n/c (p - 2
// + c) bytes: nearly the time of one transfer, however many ranks there are. Requires: chunk > 0.
Schedule build_chain(const ScheduleSpec& spec);

// The ring. Supports all_gather(_v), reduce_scatter(_v) and all_reduce, for large n on many ranks
// whose network cannot carry traffic between all pairs. Each rank sends n(p-1)/p bytes, twice as
// many in an all_reduce, all of them to the next rank. The ring's sums do not have the promised
// bits (kernels/reduce.h), so reductions use the ring only on request.
Schedule build_ring(const ScheduleSpec& spec);

// Bruck's all_to_all, for small blocks on many ranks: ceil(log2 p) messages of about half the
// buffer instead of p - 1 messages of one block, but every byte travels log2(p)/2 times on average.
Schedule build_bruck(const ScheduleSpec& spec);

// Recursive doubling, for small n. all_reduce takes ceil(log2 p) rounds of n bytes; all_gather(_v),
// of contiguous blocks, takes as many rounds and n(p-1)/p bytes. Works for any p.
Schedule build_doubling(const ScheduleSpec& spec);
// Recursive halving, for large n. Supports all_reduce and reduce_scatter (of contiguous blocks). An
// all_reduce takes 2 log2 p messages and about 2n bytes.
Schedule build_halving(const ScheduleSpec& spec);

// The ranks of a reduction, in order, and the places of this rank's contribution and result. The
// hierarchy runs recursive halving between hosts over a Team of one rank per host.
struct Team {
  std::vector<int> ranks;
  int index = 0;               // this rank's position
  std::size_t leaf_ranks = 1;  // each contribution is the sum of this many ranks
  Place leaf;                  // this rank's contribution; partial if leaf_ranks > 1
  Place result;
  std::size_t scratch_base = 0;  // the scratch and the partials from these offsets on are free
  std::size_t partial_base = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  bool leaf_is_partial() const { return leaf.space == Space::kPartial; }
};

// Each function adds the steps that reduce `count` elements over the team and put the whole result
// into `result` on every rank.
void add_doubling_all_reduce(ScheduleBuilder& builder, const Team& team, std::size_t count);
void add_halving_all_reduce(ScheduleBuilder& builder, const Team& team, std::size_t count);

// A subtree of the reduction tree over all ranks (kernels/reduce.h) whose ranks are all on one
// host. The host can compute the sum of the subtree without changing the bits of the whole sum.
struct Subtree {
  int first = 0;
  int num_ranks = 0;
  bool operator==(const Subtree&) const = default;
};

// The largest whole subtrees that make up the ranks of each host, in rank order.
std::vector<std::vector<Subtree>> subtrees_by_host(const Hosts& hosts);

// The number of ranks per host, if every host is one whole subtree, all of the same size and in
// rank order; otherwise 0. It is a power of two unless there is only one host. `by_host` is the
// result of subtrees_by_host().
int ranks_of_equal_subtrees(const std::vector<std::vector<Subtree>>& by_host);

// The hierarchy: shared memory inside a host, messages between hosts. Each byte crosses the network
// once per host, not once per rank, and the ranks of a host share that work. Supports all_reduce,
// broadcast, reduce, all_gather(_v) and reduce_scatter(_v). Requires: spec.hosts.
Schedule build_hierarchy(const ScheduleSpec& spec);

// The part of the hierarchy that works without lanes (hierarchy.cpp): all_gather(_v) and
// reduce_scatter(_v). Requires: spec.hosts.
Schedule build_hierarchy_of_blocks(const ScheduleSpec& spec);

// The most elements of each block, at least 1, that an operation with unequal counts may take at a
// time (BlockTable::piece()) so that every rank's scratch has at most `room` elements. Requires:
// `room` suffices for one element of each block and of each contribution from another host.
std::size_t hierarchy_block_count(Op op, std::span<const std::size_t> counts, const Hosts& hosts,
                                  std::size_t room);

}  // namespace paceline
