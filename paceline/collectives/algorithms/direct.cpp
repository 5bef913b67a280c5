#include "paceline/collectives/algorithms/direct.h"

#include <algorithm>
#include <utility>

namespace paceline {
namespace {

// 64 bytes of the narrowest type.
constexpr std::size_t kChunkAlignment = 64;

class Builder {
 public:
  explicit Builder(const ScheduleSpec& spec) : spec_(spec) {}

  // Calls body(peer) for every other rank, beginning with the next one, so that not all ranks talk
  // to rank 0 at once.
  template <class Body>
  void for_each_peer(Body body) {
    for (int i = 1; i < spec_.world_size; ++i) body((spec_.rank + i) % spec_.world_size);
  }

  void send(int peer, int round, Place from, Place to, std::size_t count) {
    add({Step::Kind::kSend, peer, round, from, to, count});
  }
  void receive(int peer, int round, Place from, Place to, std::size_t count) {
    add({Step::Kind::kReceive, peer, round, from, to, count});
    if (to.space == Space::kSlot) schedule_.slot_count = std::max(schedule_.slot_count, count);
  }
  void reduce(Place own, Place to, std::size_t count) {
    add({Step::Kind::kReduce, -1, 0, own, to, count});
    if (to.space == Space::kSlot) schedule_.slot_count = std::max(schedule_.slot_count, count);
  }
  void copy(Place from, Place to, std::size_t count) {
    add({Step::Kind::kCopy, -1, 0, from, to, count});
  }

  Schedule take() { return std::move(schedule_); }

 private:
  void add(const Step& step) {
    if (step.count > 0) schedule_.steps.push_back(step);
  }

  const ScheduleSpec& spec_;
  Schedule schedule_;
};

Place input(std::size_t offset) { return {Space::kInput, offset}; }
Place output(std::size_t offset) { return {Space::kOutput, offset}; }
Place slot(int rank) { return {Space::kSlot, static_cast<std::size_t>(rank)}; }
std::size_t block(int rank, std::size_t stride) { return static_cast<std::size_t>(rank) * stride; }

// Everybody's contribution to chunk p of input goes to rank p, which reduces it into `to`.
void build_chunk_reduction(Builder& builder, const ScheduleSpec& spec, Place to) {
  const Chunk mine = chunk_of(spec.count, spec.rank, spec.world_size);
  builder.for_each_peer([&](int peer) {
    const Chunk theirs = chunk_of(spec.count, peer, spec.world_size);
    builder.send(peer, 0, input(theirs.begin), slot(spec.rank), theirs.count());
  });
  builder.for_each_peer(
      [&](int peer) { builder.receive(peer, 0, input(mine.begin), slot(peer), mine.count()); });
  builder.reduce(input(mine.begin), to, mine.count());
}

void build_all_reduce(Builder& builder, const ScheduleSpec& spec) {
  const Chunk mine = chunk_of(spec.count, spec.rank, spec.world_size);
  build_chunk_reduction(builder, spec, output(mine.begin));
  builder.for_each_peer([&](int peer) {
    builder.send(peer, 1, output(mine.begin), output(mine.begin), mine.count());
  });
  builder.for_each_peer([&](int peer) {
    const Chunk theirs = chunk_of(spec.count, peer, spec.world_size);
    builder.receive(peer, 1, output(theirs.begin), output(theirs.begin), theirs.count());
  });
}

void build_reduce(Builder& builder, const ScheduleSpec& spec) {
  const Chunk mine = chunk_of(spec.count, spec.rank, spec.world_size);
  if (spec.rank != spec.root) {
    build_chunk_reduction(builder, spec, slot(spec.rank));
    builder.send(spec.root, 1, slot(spec.rank), output(mine.begin), mine.count());
    return;
  }
  build_chunk_reduction(builder, spec, output(mine.begin));
  builder.for_each_peer([&](int peer) {
    const Chunk theirs = chunk_of(spec.count, peer, spec.world_size);
    builder.receive(peer, 1, slot(peer), output(theirs.begin), theirs.count());
  });
}

void build_reduce_scatter(Builder& builder, const ScheduleSpec& spec) {
  builder.for_each_peer([&](int peer) {
    builder.send(peer, 0, input(block(peer, spec.input_stride)), slot(spec.rank), spec.count);
  });
  const Place own = input(block(spec.rank, spec.input_stride));
  builder.for_each_peer([&](int peer) { builder.receive(peer, 0, own, slot(peer), spec.count); });
  builder.reduce(own, output(0), spec.count);
}

void build_broadcast(Builder& builder, const ScheduleSpec& spec) {
  if (spec.rank != spec.root) {
    builder.receive(spec.root, 0, input(0), output(0), spec.count);
    return;
  }
  builder.copy(input(0), output(0), spec.count);
  builder.for_each_peer([&](int peer) { builder.send(peer, 0, input(0), output(0), spec.count); });
}

// all_gather, and gather at its root only.
void build_gather(Builder& builder, const ScheduleSpec& spec) {
  const bool everybody = spec.op == Op::kAllGather;
  const Place mine = output(block(spec.rank, spec.output_stride));
  builder.for_each_peer([&](int peer) {
    if (everybody || peer == spec.root) builder.send(peer, 0, input(0), mine, spec.count);
  });
  if (!everybody && spec.rank != spec.root) return;
  builder.copy(input(0), mine, spec.count);
  builder.for_each_peer([&](int peer) {
    builder.receive(peer, 0, input(0), output(block(peer, spec.output_stride)), spec.count);
  });
}

void build_scatter(Builder& builder, const ScheduleSpec& spec) {
  const Place mine = input(block(spec.rank, spec.input_stride));
  if (spec.rank != spec.root) {
    builder.receive(spec.root, 0, mine, output(0), spec.count);
    return;
  }
  builder.for_each_peer([&](int peer) {
    builder.send(peer, 0, input(block(peer, spec.input_stride)), output(0), spec.count);
  });
  builder.copy(mine, output(0), spec.count);
}

void build_all_to_all(Builder& builder, const ScheduleSpec& spec) {
  const Place mine = output(block(spec.rank, spec.output_stride));
  builder.for_each_peer([&](int peer) {
    builder.send(peer, 0, input(block(peer, spec.input_stride)), mine, spec.count);
  });
  builder.copy(input(block(spec.rank, spec.input_stride)), mine, spec.count);
  builder.for_each_peer([&](int peer) {
    builder.receive(peer, 0, input(block(spec.rank, spec.input_stride)),
                    output(block(peer, spec.output_stride)), spec.count);
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
  Builder builder(spec);
  switch (spec.op) {
    case Op::kAllReduce:
      build_all_reduce(builder, spec);
      break;
    case Op::kReduce:
      build_reduce(builder, spec);
      break;
    case Op::kReduceScatter:
      build_reduce_scatter(builder, spec);
      break;
    case Op::kBroadcast:
      build_broadcast(builder, spec);
      break;
    case Op::kAllGather:
    case Op::kGather:
      build_gather(builder, spec);
      break;
    case Op::kScatter:
      build_scatter(builder, spec);
      break;
    case Op::kAllToAll:
      build_all_to_all(builder, spec);
      break;
    case Op::kBarrier:
    case Op::kSend:
    case Op::kReceive:
    case Op::kAllocate:
      break;
  }
  return builder.take();
}

Schedule build_one_shot_all_reduce(const ScheduleSpec& spec) {
  Builder builder(spec);
  builder.for_each_peer(
      [&](int peer) { builder.send(peer, 0, input(0), slot(spec.rank), spec.count); });
  builder.for_each_peer(
      [&](int peer) { builder.receive(peer, 0, input(0), slot(peer), spec.count); });
  builder.reduce(input(0), output(0), spec.count);
  return builder.take();
}

}  // namespace paceline
