#pragma once

// Direct algorithms: every range travels straight from the rank that has it to the rank that needs
// it.
//
// all_reduce is a direct reduce-scatter followed by a direct all-gather: the buffer is cut into one
// chunk per rank; each rank gets every rank's contribution to its chunk, reduces them in the fixed
// tree, and hands the result out. Cost for n bytes on p ranks: 2(p-1) messages and 2n(p-1)/p bytes
// sent per rank (the bandwidth bound; Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms", 2009), n/p x (p-1) combined per rank. Since a reduce sees all contributions at once,
// the order of the sum does not depend on the algorithm, the transport or the chunking.
//
// one_shot_all_reduce: every rank sends its whole buffer to every other and reduces all of them.
// p-1 messages, n(p-1) bytes: for small n.

#include <span>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"

namespace paceline {

// Every operation but send and receive. Pure. Requires: 0 <= rank, root < world_size.
Schedule build_direct(const ScheduleSpec& spec);
Schedule build_one_shot_all_reduce(const ScheduleSpec& spec);

// The elements [begin, end) of a buffer of `count` that `rank` reduces: equal chunks, rounded to
// whole cache lines of the widest type so that two ranks never write one line.
struct Chunk {
  std::size_t begin, end;
  std::size_t count() const { return end - begin; }
};
Chunk chunk_of(std::size_t count, int rank, int world_size);

// Binomial trees: ceil(log2 p) messages one after the other, each of the whole buffer. For small n
// on many ranks, where the number of messages counts.
//
// broadcast: a rank that has the buffer hands it to the rank half of the rest away (ranks counted
// from the root). reduce: rank r adds up what covers [r, r + 2^k) and hands it to r - 2^k, so that
// every partial sum is a subtree of the promised order; rank 0 passes the result on to another
// root.

// Broadcast and reduce. Pure.
Schedule build_tree(const ScheduleSpec& spec);

// A pipelined chain: the root sends the buffer in chunks to the next rank, which passes each on as
// soon as it has it. With c chunks of n/c bytes, n/c (p - 2 + c) byte times: for large n nearly the
// time of one transfer, however many ranks; and ranks of one host stand beside each other in the
// chain, so that each byte enters a host once.

// Broadcast. Pure. Requires: chunk > 0.
Schedule build_chain(const ScheduleSpec& spec);

// The ring: every rank sends to the next and receives from the one before, p - 1 times, one chunk
// at a time. n(p-1)/p bytes sent per rank for all_gather and for reduce_scatter, twice that for
// all_reduce (Patarasuk and Yuan, 2009), and no link carries more than its two ends send: for large
// n on many ranks whose network cannot carry traffic between all pairs.
//
// all_gather keeps all promises. A ring's sum does not: chunk c is added up in the order c+1, c+2,
// ..., c. It has the same bits on every rank and in every run with that number of ranks, but not
// those of the other algorithms; so it must be asked for.

// Pure. all_gather, all_gather_v, reduce_scatter, reduce_scatter_v and all_reduce.
Schedule build_ring(const ScheduleSpec& spec);

// Bruck's all_to_all: blocks travel by the binary digits of their distance, so that a rank sends
// ceil(log2 p) messages of about half its buffer instead of p - 1 of one block (Bruck et al.,
// 1997). For small blocks on many ranks: every byte travels log2(p)/2 times on average.

// all_to_all. Pure.
Schedule build_bruck(const ScheduleSpec& spec);

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

// Which parts of the promised tree over all ranks (kernels/reduce.h) lie on one host or package:
// what can be added up there by itself without a change of the sum's bits. Thread safety: pure.

// A whole subtree: first rank and number of ranks.
struct Subtree {
  int first = 0;
  int num_ranks = 0;
  bool operator==(const Subtree&) const = default;
};

// The largest whole subtrees that make up the ranks of each host, in rank order.
std::vector<std::vector<Subtree>> subtrees_by_host(const Hosts& hosts);

// The ranks of each host where every host is one whole subtree, all of the same size and in the
// order of the ranks; 0 otherwise. A power of two, unless there is one host. Takes what
// subtrees_by_host() gives.
int ranks_of_equal_subtrees(const std::vector<std::vector<Subtree>>& by_host);

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

// all_reduce, broadcast, reduce, all_gather(_v) and reduce_scatter(_v). Pure. Requires: spec.hosts.
Schedule build_hierarchy(const ScheduleSpec& spec);

// The hierarchy's half without lanes: all_gather and reduce_scatter, with equal or unequal counts.
//
// What a rank gives to the ranks of another host, or they to it, goes through one rank there, which
// their positions on their hosts say. all_gather: a rank sends its block to one rank of each other
// host, from whose scratch the ranks of that host fetch it. reduce_scatter: for each rank of
// another host one rank of this host adds up what its host gives to that rank, subtree by subtree,
// and sends the sums. A rank that has most of the elements so does most of its host's sending, or
// gets most of it.

// all_gather(_v) and reduce_scatter(_v). Pure. Requires: spec.hosts.
Schedule build_hierarchy_of_blocks(const ScheduleSpec& spec);

// The most elements of each block, at least 1, that an operation with unequal counts may take at a
// time (BlockTable::piece()) so that every rank's scratch has at most `room` elements. Requires:
// `room` for one element of each block and of each contribution from another host.
std::size_t hierarchy_block_count(Op op, std::span<const std::size_t> counts, const Hosts& hosts,
                                  std::size_t room);

}  // namespace paceline
