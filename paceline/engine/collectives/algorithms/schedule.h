#pragma once

// An algorithm as data: one rank's part in a collective is a list of steps over element ranges.
// Pure functions build schedules (algorithms/), executors run them over messages or in shared
// memory, the simulator runs schedules of messages in virtual time, and tests run all ranks'
// schedules without a network.
//
// Terms. *Input* and *output* are the caller's buffers. *Scratch* holds all other elements, such as
// received contributions and results that other ranks fetch. A *partial* is a sum over a subtree
// of ranks, in the accumulator's type (kernels/reduce.h). A *chunk* is the part of a buffer that
// one rank reduces.
//
// Steps are carried out in order, but a send or receive step only begins a transfer, which
// continues during later steps. A step that would read elements still being received, or overwrite
// elements still being received or sent, waits for that transfer (scoreboard.h). The only other
// steps that wait are kAwait and kMeet. Ranks of one host may read each other's scratch and
// partials (`owner`) after a kMeet that follows the write.
//
// Rules that every schedule of messages keeps (tests/engine/collectives/schedule_test.cpp checks
// them for world sizes 1 to 17; algorithms/in_shared_memory.h has the rules for shared memory):
//   - every send has exactly one matching receive, in the same order per pair of ranks, with the
//     same Space (a partial is received as a partial) and the same count;
//   - the schedule ends even if every send lasts until its receive has begun;
//   - a reduce combines whole subtrees in rank order, so that the sum has the promised bits; only
//     the ring breaks this rule;
//   - no rank ends before it knows, directly or through others, that every rank has begun, and
//     every rank begins with a message to the next rank. So if ranks make different calls, every
//     rank notices the difference. build() (selection/algorithm.h) adds the messages for this rule.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/hosts.h"

namespace paceline {

enum class Space : std::uint8_t { kInput, kOutput, kScratch, kPartial };

// The beginning of a range, in elements; in kPartial, in accumulators.
struct Place {
  Space space = Space::kInput;
  std::size_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct Step {
  enum class Kind : std::uint8_t {
    kSend,
    kReceive,
    kAwait,  // waits until every receive from `peer` that was begun earlier has ended
    // Reduces `operands` into `to`. The result is partial if `to` is in kPartial, otherwise final.
    kReduce,
    kCopy,
    // Waits for the sends and receives of elements that this rank has begun, then for all ranks of
    // this host. Afterwards each rank sees everything that the others wrote before.
    kMeet,
  };
  Kind kind = Kind::kCopy;
  int peer = -1;   // send, receive, await
  int owner = -1;  // send, copy: the rank of this host whose memory contains `from`; -1: this rank
  Place from;      // send, copy: at `owner`; receive: at the sender
  Place to;        // receive, reduce, copy: at this rank; send: at the receiver
  std::size_t count = 0;
  std::size_t first_operand = 0;  // reduce
  std::size_t num_operands = 0;
  // In shared memory, the destinations of a copy or reduce; if there are none, `to`.
  std::size_t first_target = 0;
  std::size_t num_targets = 0;
};

// An operand of a reduce, from which the executor makes a ReduceSource.
struct Operand {
  Place place;
  int owner = -1;  // as in Step
  std::size_t num_ranks = 1;
};

// One of the places that a step writes.
struct Target {
  Place place;
  int owner = -1;  // as in Step
};

struct Schedule {
  std::vector<Step> steps;
  std::size_t first_meeting = 0;  // index of the first kMeet in `steps`; also 0 if there is none
  // A large call runs in pieces. If `overlaps`, the first num_ahead steps (sends and receives only)
  // of the next piece may run while this piece is under way, so that the network does not pause.
  // On all ranks, num_ahead marks the same point of the algorithm.
  bool overlaps = false;
  std::size_t num_ahead = 0;
  std::vector<Operand> operands;
  std::vector<Target> targets;
  std::size_t scratch_count = 0;  // scratch that the schedule needs, in elements
  std::size_t partial_count = 0;  // partials that the schedule needs, in accumulators
};

struct Block {
  std::size_t offset = 0;
  std::size_t count = 0;
};

// Where the blocks of an operation with unequal counts lie. all_gather_v and reduce_scatter_v have
// one block for each rank, all_to_all_v one for each pair of ranks, by sender, then by receiver.
struct BlockTable {
  std::vector<Block> given;   // blocks in the input of the giving rank
  std::vector<Block> placed;  // blocks in the output of the receiving rank

  static BlockTable of(const Collective& call, int world_size);
  // The table for the elements [begin, begin + most) of every block.
  BlockTable piece(std::size_t begin, std::size_t most) const;
};

// The call for which a schedule is built. Blocks of gather-like and scatter-like operations begin
// every `input_stride` or `output_stride` elements, so that one schedule can serve a piece of a
// larger call. Blocks with unequal counts are listed in `blocks`.
struct ScheduleSpec {
  Op op = Op::kBarrier;
  int rank = 0;
  int world_size = 1;
  int root = 0;
  std::size_t count = 0;  // as in Collective; with `blocks`, at least the longest block's
  std::size_t input_stride = 0;
  std::size_t output_stride = 0;
  const BlockTable* blocks = nullptr;  // for operations with unequal counts
  std::size_t chunk = 0;               // elements; for the chain and for in-place broadcasts
  const Hosts* hosts = nullptr;        // for the hierarchy

  // The block that `from` gives to `to`: given() returns its place in the input of `from`, placed()
  // its place in the output of `to`. Only for operations on blocks; in operations with a root,
  // `from` or `to` must be the root.
  Block given(int from, int to) const;
  Block placed(int from, int to) const;

 private:
  std::size_t block_number(int from, int to) const;
};

}  // namespace paceline
