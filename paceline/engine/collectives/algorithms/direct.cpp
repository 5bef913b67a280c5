// The direct algorithms: every range travels straight from the rank that has it to the rank that
// needs it.
//
// Terms. A *chunk* is the part of a buffer that one rank reduces (chunk_of()). A *slot* is where a
// contribution arrives: rank q's slot begins at q times the length of the receiver's chunk in the
// receiver's scratch. No contribution arrives in a rank's own slot, because the rank reads its own
// contribution from its input; in a reduce, the rank keeps its result in this slot.
//
// all_reduce among three ranks (A, B and C are the ranks' inputs; the digits number the chunks):
//
//             rank 0             rank 1             rank 2
//   sends     A1, A2             B0, B2             C0, C1
//   reduces   A0 + B0 + C0       A1 + B1 + C1       A2 + B2 + C2
//   sends     sum 0 to both      sum 1 to both      sum 2 to both
//
// The first two lines are a reduce_scatter, the third is an all_gather. A reduce step reads all
// contributions to its chunk at once, in rank order, so the order of the sum does not depend on how
// the buffer is divided. With p ranks and a buffer of n bytes, each rank receives n/p x (p - 1)
// bytes of contributions.
//
// In each exchange, all sends come first, beginning with the send to the next rank, and then the
// receives in the same order. These steps only begin transfers, so all pairs of ranks exchange at
// the same time (schedule.h).

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"

namespace paceline {
namespace {

// Chunks begin at multiples of this many elements: 64 bytes of the narrowest type.
constexpr std::size_t kChunkAlignment = 64;

// The contributions of all ranks, in rank order: this rank's own at `own`, the others in scratch,
// where rank q's begins at q times `count`.
std::vector<Operand> contributions(const ScheduleSpec& spec, Place own, std::size_t count) {
  std::vector<Operand> operands;
  for (int rank = 0; rank < spec.world_size; ++rank) {
    const Place received = scratch(static_cast<std::size_t>(rank) * count);
    operands.push_back({rank == spec.rank ? own : received});
  }
  return operands;
}

// For each chunk p, every rank sends its contribution to rank p, which reduces all contributions
// into `to`.
void build_chunk_reduction(ScheduleBuilder& builder, const ScheduleSpec& spec, Place to) {
  const Chunk mine = chunk_of(spec.count, spec.rank, spec.world_size);
  builder.for_each_peer([&](int peer) {
    const Chunk theirs = chunk_of(spec.count, peer, spec.world_size);
    const std::size_t slot = static_cast<std::size_t>(spec.rank) * theirs.count();
    builder.send(peer, input(theirs.begin), scratch(slot), theirs.count());
  });
  builder.for_each_peer([&](int peer) {
    const std::size_t slot = static_cast<std::size_t>(peer) * mine.count();
    builder.receive(peer, input(mine.begin), scratch(slot), mine.count());
  });
  builder.mark_ahead();
  builder.reduce(contributions(spec, input(mine.begin), mine.count()), to, mine.count());
}

void build_all_reduce(ScheduleBuilder& builder, const ScheduleSpec& spec) {
  const Chunk mine = chunk_of(spec.count, spec.rank, spec.world_size);
  build_chunk_reduction(builder, spec, output(mine.begin));
  builder.for_each_peer(
      [&](int peer) { builder.send(peer, output(mine.begin), output(mine.begin), mine.count()); });
  builder.for_each_peer([&](int peer) {
    const Chunk theirs = chunk_of(spec.count, peer, spec.world_size);
    builder.receive(peer, output(theirs.begin), output(theirs.begin), theirs.count());
  });
}

// A rank other than the root keeps its result in its own slot, which holds no contribution.
void build_reduce(ScheduleBuilder& builder, const ScheduleSpec& spec) {
  const auto result_of = [&](int rank) {
    const Chunk chunk = chunk_of(spec.count, rank, spec.world_size);
    return scratch(static_cast<std::size_t>(rank) * chunk.count());
  };
  const Chunk mine = chunk_of(spec.count, spec.rank, spec.world_size);
  if (spec.rank != spec.root) {
    build_chunk_reduction(builder, spec, result_of(spec.rank));
    builder.send(spec.root, result_of(spec.rank), output(mine.begin), mine.count());
    return;
  }
  build_chunk_reduction(builder, spec, output(mine.begin));
  builder.for_each_peer([&](int peer) {
    const Chunk theirs = chunk_of(spec.count, peer, spec.world_size);
    builder.receive(peer, result_of(peer), output(theirs.begin), theirs.count());
  });
}

void build_reduce_scatter(ScheduleBuilder& builder, const ScheduleSpec& spec) {
  builder.for_each_peer([&](int peer) {
    const Block block = spec.given(spec.rank, peer);
    const std::size_t slot = static_cast<std::size_t>(spec.rank) * block.count;
    builder.send(peer, input(block.offset), scratch(slot), block.count);
  });
  const Block own = spec.given(spec.rank, spec.rank);
  builder.for_each_peer([&](int peer) {
    const std::size_t slot = static_cast<std::size_t>(peer) * own.count;
    builder.receive(peer, input(own.offset), scratch(slot), own.count);
  });
  builder.mark_ahead();
  builder.reduce(contributions(spec, input(own.offset), own.count),
                 output(spec.placed(spec.rank, spec.rank).offset), own.count);
}

void build_broadcast(ScheduleBuilder& builder, const ScheduleSpec& spec) {
  if (spec.rank != spec.root) {
    builder.receive(spec.root, input(0), output(0), spec.count);
    return;
  }
  builder.copy(input(0), output(0), spec.count);
  builder.for_each_peer([&](int peer) { builder.send(peer, input(0), output(0), spec.count); });
}

// Gathers, scatters and all_to_all: block (from, to) goes from `from` to `to` if gives(from, to).
template <class Gives>
void build_blocks(ScheduleBuilder& builder, const ScheduleSpec& spec, Gives gives) {
  const auto place = [&](int from, int to) {
    return std::pair(input(spec.given(from, to).offset), output(spec.placed(from, to).offset));
  };
  builder.for_each_peer([&](int peer) {
    if (!gives(spec.rank, peer)) return;
    const auto [from, to] = place(spec.rank, peer);
    builder.send(peer, from, to, spec.given(spec.rank, peer).count);
  });
  if (gives(spec.rank, spec.rank)) {
    const auto [from, to] = place(spec.rank, spec.rank);
    builder.copy(from, to, spec.given(spec.rank, spec.rank).count);
  }
  builder.for_each_peer([&](int peer) {
    if (!gives(peer, spec.rank)) return;
    const auto [from, to] = place(peer, spec.rank);
    builder.receive(peer, from, to, spec.given(peer, spec.rank).count);
  });
}

}  // namespace

Chunk chunk_of(std::size_t count, int rank, int world_size) {
  const auto world = static_cast<std::size_t>(world_size);
  const std::size_t even = (count + world - 1) / world;
  const std::size_t size = (even + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  const std::size_t begin = std::min(count, size * static_cast<std::size_t>(rank));
  return {begin, std::min(count, begin + size)};
}

Schedule build_direct(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  switch (spec.op) {
    case Op::kAllReduce:
      build_all_reduce(builder, spec);
      break;
    case Op::kReduce:
      build_reduce(builder, spec);
      break;
    case Op::kReduceScatter:
    case Op::kReduceScatterV:
      build_reduce_scatter(builder, spec);
      break;
    case Op::kBroadcast:
      build_broadcast(builder, spec);
      break;
    case Op::kGather:
      build_blocks(builder, spec, [&](int, int to) { return to == spec.root; });
      break;
    case Op::kScatter:
      build_blocks(builder, spec, [&](int from, int) { return from == spec.root; });
      break;
    case Op::kAllGather:
    case Op::kAllGatherV:
    case Op::kAllToAll:
    case Op::kAllToAllV:
      build_blocks(builder, spec, [](int, int) { return true; });
      break;
    case Op::kBarrier:
    case Op::kSend:
    case Op::kReceive:
    case Op::kAllocate:
    case Op::kNewGroup:
    case Op::kSplit:
    case Op::kTakeTurns:
    case Op::kVisit:
      break;
  }
  return builder.take();
}

Schedule build_one_shot_all_reduce(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  const auto slot = [&](int rank) { return scratch(static_cast<std::size_t>(rank) * spec.count); };
  builder.for_each_peer(
      [&](int peer) { builder.send(peer, input(0), slot(spec.rank), spec.count); });
  builder.for_each_peer([&](int peer) { builder.receive(peer, input(0), slot(peer), spec.count); });
  builder.reduce(contributions(spec, input(0), spec.count), output(0), spec.count);
  return builder.take();
}

}  // namespace paceline
