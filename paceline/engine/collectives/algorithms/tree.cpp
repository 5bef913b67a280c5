// Binomial trees, and the chain.
//
// Broadcast. The *distance* of a rank is its number counted from the root, modulo the number of
// ranks. A rank at distance d gets the buffer from its *parent*, at distance d minus the lowest set
// bit of d, and then sends it to the ranks at d + 2^k for all 2^k below that bit, the farthest
// first. With eight ranks:
//
//   round 1   0 -> 4
//   round 2   0 -> 2   4 -> 6
//   round 3   0 -> 1   2 -> 3   4 -> 5   6 -> 7
//
// Reduce uses the same tree upwards, over rank numbers instead of distances, whatever the root. Let
// 2^k be the lowest set bit of rank r. The rank adds up the contributions of the existing ranks in
// [r, r + 2^k), whose number is its *width*, and sends the sum to rank r - 2^k. So every sum covers
// a subtree of the fixed tree of ranks (kernels/reduce.h), and rank 0 gets the whole sum, which it
// sends to the root if that is another rank. The sum of a single rank is its contribution, in the
// element's type; a wider sum is a partial, in the accumulator's type.
//
// The chain. The root sends the buffer in chunks to the next rank, and each rank passes a chunk on
// as soon as it has received it. If the ranks of each host have consecutive numbers, each byte
// enters a host at most once. All receives are begun before the first send; a send waits for the
// chunk that it passes on.

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"

namespace paceline {

namespace {

void build_tree_broadcast(ScheduleBuilder& builder, const ScheduleSpec& spec) {
  const int world = spec.world_size;
  const int from_root = (spec.rank - spec.root + world) % world;
  const auto rank_at = [&](int distance) { return (spec.root + distance) % world; };
  const Place whole = from_root == 0 ? input(0) : output(0);
  int step = 1 << levels_of(world);
  if (from_root == 0) {
    builder.copy(input(0), output(0), spec.count);
  } else {
    step = from_root & -from_root;
    const int parent = from_root - step;
    builder.receive(rank_at(parent), parent == 0 ? input(0) : output(0), output(0), spec.count);
  }
  for (step /= 2; step > 0; step /= 2) {
    if (from_root + step >= world) continue;
    builder.send(rank_at(from_root + step), whole, output(0), spec.count);
  }
}

class TreeReduce {
 public:
  TreeReduce(ScheduleBuilder& builder, const ScheduleSpec& spec) : builder_(builder), spec_(spec) {}

  void build() {
    std::vector<Operand> operands = {{input(0)}};
    for (int level = 0; has_child(spec_.rank, level); ++level) {
      const int child = spec_.rank + (1 << level);
      const Place place = slot(child, level);
      builder_.receive(child, place, place, spec_.count);
      operands.push_back({place, -1, static_cast<std::size_t>(width_of(child))});
    }
    if (spec_.rank == 0) {
      finish(operands);
    } else {
      send_to_parent(operands);
    }
    if (spec_.rank == spec_.root && spec_.rank != 0) {
      builder_.receive(0, result(), output(0), spec_.count);
    }
  }

 private:
  bool has_child(int rank, int level) const {
    return (rank & (1 << level)) == 0 && rank + (1 << level) < spec_.world_size &&
           level < levels_of(spec_.world_size);
  }
  // The number of ranks in the sum that `rank` sends to its parent.
  int width_of(int rank) const { return std::min(rank & -rank, spec_.world_size - rank); }
  // Where the sum of the child at `level` arrives; a single contribution is not a partial sum.
  Place slot(int child, int level) const {
    const std::size_t offset = static_cast<std::size_t>(level) * spec_.count;
    return width_of(child) == 1 ? scratch(offset) : partial(offset);
  }
  Place result() const {
    return scratch(static_cast<std::size_t>(levels_of(spec_.world_size)) * spec_.count);
  }

  void finish(const std::vector<Operand>& operands) {
    if (spec_.root == 0) {
      builder_.reduce(operands, output(0), spec_.count);
      return;
    }
    builder_.reduce(operands, result(), spec_.count);
    builder_.send(spec_.root, result(), output(0), spec_.count);
  }

  void send_to_parent(const std::vector<Operand>& operands) {
    const int level = std::countr_zero(static_cast<unsigned>(spec_.rank));
    Place sum = input(0);
    if (operands.size() > 1) {
      sum = partial(static_cast<std::size_t>(levels_of(spec_.world_size)) * spec_.count);
      builder_.reduce(operands, sum, spec_.count);
    }
    builder_.send(spec_.rank - (1 << level), sum, slot(spec_.rank, level), spec_.count);
  }

  ScheduleBuilder& builder_;
  const ScheduleSpec& spec_;
};

}  // namespace

Schedule build_tree(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  if (spec.op == Op::kBroadcast) {
    build_tree_broadcast(builder, spec);
  } else {
    TreeReduce(builder, spec).build();
  }
  return builder.take();
}

Schedule build_chain(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  const int world = spec.world_size;
  const bool is_root = spec.rank == spec.root;
  const int next = (spec.rank + 1) % world;
  const int previous = (spec.rank - 1 + world) % world;
  const auto source_of = [&](int rank) { return rank == spec.root ? input(0) : output(0); };
  const auto for_each_chunk = [&](auto body) {
    for (std::size_t begin = 0; begin < spec.count; begin += spec.chunk) {
      body(begin, std::min(spec.chunk, spec.count - begin));
    }
  };
  if (is_root) {
    builder.copy(input(0), output(0), spec.count);
  } else {
    for_each_chunk([&](std::size_t begin, std::size_t count) {
      builder.receive(previous, source_of(previous) + begin, output(begin), count);
    });
  }
  if (next == spec.root) return builder.take();
  for_each_chunk([&](std::size_t begin, std::size_t count) {
    builder.send(next, source_of(spec.rank) + begin, output(begin), count);
  });
  return builder.take();
}

}  // namespace paceline
