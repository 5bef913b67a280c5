// The ring, and Bruck's all_to_all.
//
// In the ring every rank r sends to the *next*, r + 1, and receives from the *previous*, r - 1
// (modulo p), p - 1 times. A *block* is what one rank gives or gets; all_reduce divides its buffer
// into blocks (chunk_of()), reduces them so that rank r has the sum of block r, and gathers the
// sums.
//
// all_gather: in step s rank r sends block r - s, and receives block r - s - 1, which it sends in
// the next step. Rank 1 of four:
//
//   step   sends   receives
//    0       1        0
//    1       0        3
//    2       3        2
//
// All receives are begun before the first send; a send waits for the block that it passes on.
//
// reduce_scatter: in step s rank r sends its sum of block r - s - 1, and adds its own contribution
// to the sum of block r - s - 2 that it receives. The sum of block c begins as the contribution of
// the rank after c, travels around, and ends on rank c: it is added up in the order c + 1, c + 2,
// ..., c. It has the same bits on every rank and in every run with that number of ranks, but not
// the bits of other algorithms. The first message to arrive is a contribution; later messages are
// partials. The rank's own sums use two places alternately, because the previous sum may not have
// been sent yet.
//
// Bruck's all_to_all (Bruck et al., "Efficient algorithms for all-to-all communications in
// multiport message-passing systems", 1997): a block that has to go the distance d (to rank r + d)
// travels by the binary digits of d. In the round of digit 2^k every rank sends all blocks whose
// distance has that digit, packed into one message, to rank r + 2^k.

#include <functional>

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"
#include "paceline/engine/collectives/op_traits.h"

namespace paceline {

namespace {

class Ring {
 public:
  using BlockOf = std::function<Block(int rank)>;

  Ring(ScheduleBuilder& builder, const ScheduleSpec& spec)
      : builder_(builder),
        world_(spec.world_size),
        rank_(spec.rank),
        next_(at(1)),
        previous_(at(-1)) {}

  // Gathers every rank's block at its place in this rank's output.
  void all_gather(const BlockOf& placed) {
    for (int step = 0; step + 1 < world_; ++step) {
      const Block theirs = placed(at(-1 - step));
      builder_.receive(previous_, output(theirs.offset), output(theirs.offset), theirs.count);
    }
    for (int step = 0; step + 1 < world_; ++step) {
      const Block mine = placed(at(-step));
      builder_.send(next_, output(mine.offset), output(mine.offset), mine.count);
    }
  }

  // Puts this rank's block of the sum into `result`.
  void reduce_scatter(const BlockOf& given, Place result) {
    std::size_t largest = 0;
    for (int rank = 0; rank < world_; ++rank) largest = std::max(largest, given(rank).count);
    const Block own = given(rank_);
    if (world_ == 1) builder_.reduce({{input(own.offset)}}, result, own.count);
    Place sum = input(given(at(-1)).offset);
    for (int step = 0; step + 1 < world_; ++step) {
      const Place arrival = step == 0 ? scratch(0) : partial(2 * largest);
      const Block received = given(at(-2 - step));
      builder_.send(next_, sum, arrival, given(at(-1 - step)).count);
      builder_.receive(previous_, arrival, arrival, received.count);
      const auto turn = static_cast<std::size_t>(step % 2) * largest;
      sum = step + 2 == world_ ? result : partial(turn);
      builder_.reduce({{arrival}, {input(received.offset)}}, sum, received.count);
    }
  }

 private:
  int at(int distance) const { return ((rank_ + distance) % world_ + world_) % world_; }

  ScheduleBuilder& builder_;
  const int world_;
  const int rank_;
  const int next_;
  const int previous_;
};

}  // namespace

Schedule build_ring(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  Ring ring(builder, spec);
  if (spec.op == Op::kAllReduce) {
    const auto chunk = [&](int rank) {
      const Chunk range = chunk_of(spec.count, rank, spec.world_size);
      return Block{range.begin, range.count()};
    };
    ring.reduce_scatter(chunk, output(chunk(spec.rank).offset));
    ring.all_gather(chunk);
  } else if (reduces(spec.op)) {
    ring.reduce_scatter([&](int rank) { return spec.given(spec.rank, rank); },
                        output(spec.placed(spec.rank, spec.rank).offset));
  } else {
    const Block own = spec.placed(spec.rank, spec.rank);
    builder.copy(input(0), output(own.offset), own.count);
    ring.all_gather([&](int rank) { return spec.placed(rank, spec.rank); });
  }
  return builder.take();
}

// The scratch holds first the blocks in the order of the distance that they have to travel, then,
// for each round, the packed blocks to send and the arriving ones.
Schedule build_bruck(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  const int world = spec.world_size;
  const auto at = [&](int distance) { return ((spec.rank + distance) % world + world) % world; };
  const auto block = [&](int distance) {
    return scratch(static_cast<std::size_t>(distance) * spec.count);
  };
  for (int distance = 0; distance < world; ++distance) {
    builder.copy(input(spec.given(spec.rank, at(distance)).offset), block(distance), spec.count);
  }
  std::size_t free = static_cast<std::size_t>(world) * spec.count;
  for (int digit = 1; digit < world; digit *= 2) {
    std::vector<int> moving;
    for (int distance = digit; distance < world; ++distance) {
      if ((distance & digit) != 0) moving.push_back(distance);
    }
    const std::size_t count = moving.size() * spec.count;
    const Place packed = scratch(free);
    const Place arrived = scratch(free + count);
    free += 2 * count;
    for (std::size_t i = 0; i < moving.size(); ++i) {
      builder.copy(block(moving[i]), packed + i * spec.count, spec.count);
    }
    builder.send(at(digit), packed, arrived, count);
    builder.receive(at(-digit), packed, arrived, count);
    for (std::size_t i = 0; i < moving.size(); ++i) {
      builder.copy(arrived + i * spec.count, block(moving[i]), spec.count);
    }
  }
  for (int distance = 0; distance < world; ++distance) {
    const int from = at(-distance);
    builder.copy(block(distance), output(spec.placed(from, spec.rank).offset), spec.count);
  }
  return builder.take();
}

}  // namespace paceline
