// Recursive halving and doubling: neighbours exchange first, then pairs of neighbours, and so on,
// so that every intermediate sum covers an aligned subtree of ranks and the fixed order of the sum
// (kernels/reduce.h) is kept. (The usual order in textbooks, farthest first, would not keep it.)
//
// Terms. A *team* is the list of ranks that take part; a member's *index* is its position in it. A
// *leaf* is a member's contribution; in a hierarchy it is a host's sum. In *level* k the *partner*
// of a member is the member whose index differs in bit k only. The *owners* are the first 2^m
// members, with the largest possible m; each ends with one *range* of the sum.
//
// Doubling. all_reduce: in level k a member exchanges its whole sum with its partner and adds both
// sums. all_gather: in round k rank r has the 2^k blocks that begin with its own block, and gets up
// to 2^k further blocks from rank r + 2^k (Bruck et al., 1997).
//
// Halving. In level k both partners have sums over 2^k members, of the same range. The partner
// whose bit k is 0 adds up the lower half of the range, the other one the upper half, so an owner
// sends n/2, n/4, ... bytes. all_reduce then exchanges the results in the reverse order, the
// last level first (Rabenseifner, "Optimization of collective reduction operations", 2004). The
// ranges of four owners, in quarters of the buffer:
//
//             owner 0   owner 1   owner 2   owner 3
//   level 0    0 1       2 3       0 1       2 3
//   level 1    0         2         1         3
//
// Members beyond the owners add up among themselves in the same way and hand their sums over to the
// members before them (hand_over()), which finish the sum. The members beyond the owners get the
// result directly from the owners. A partial sum of a 16-bit type is sent in float32, which takes
// twice the bytes.

#include "paceline/engine/collectives/algorithms/message_algorithms.h"

namespace paceline {
namespace {

// Ranges are divided at multiples of this number of elements: a cache line of 4-byte elements. A
// range of at most this length is not divided.
constexpr std::size_t kGrain = 16;

struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;
};

class Halving {
 public:
  // Cuts ranges at multiples of `grain`.
  Halving(ScheduleBuilder& builder, const Team& team, std::size_t count, std::size_t grain)
      : builder_(builder), team_(team), count_(count), grain_(grain) {}

  int num_owners() const { return floor_power_of_two(team_.size()); }
  // The range that the owner at `index` has after halving `levels` times.
  Range range_of(int index, int levels) const {
    Range range{0, count_};
    for (int level = 0; level < levels; ++level) {
      const auto [lower, upper] = split(range);
      range = (index >> level & 1) == 0 ? lower : upper;
    }
    return range;
  }
  Range range_of(int owner) const { return range_of(owner, levels_of(num_owners())); }
  // The owner of the range that contains the element.
  int owner_of(std::size_t element) const {
    Range range{0, count_};
    int owner = 0;
    for (int level = 0; level < levels_of(num_owners()); ++level) {
      const auto [lower, upper] = split(range);
      const bool is_upper = element >= upper.begin;
      owner |= is_upper ? 1 << level : 0;
      range = is_upper ? upper : lower;
    }
    return owner;
  }

  // Leaves each owner's range of the sum at its place in the result.
  void reduce() { reduce_node(0, team_.size(), true); }

  // Gathers the owners' ranges, so that every member has the whole result.
  void gather() {
    const int owners = num_owners();
    if (team_.index >= owners) {
      for (int owner = 0; owner < owners; ++owner) receive_result(owner, range_of(owner));
      return;
    }
    for (int rest = owners; rest < team_.size(); ++rest) send_result(rest, range_of(team_.index));
    for (int level = levels_of(owners) - 1; level >= 0; --level) {
      const int partner = team_.index ^ (1 << level);
      send_result(partner, range_of(team_.index, level + 1));
      receive_result(partner, range_of(partner, level + 1));
    }
  }

 private:
  // The range of a sum that this rank holds. Element i is at `place` + i, so `place` itself would
  // be the place of element 0, which the range need not contain. `ranks`: how many ranks the sum
  // covers.
  struct Sum {
    Place place;
    Range range;
    std::size_t ranks;
  };

  std::pair<Range, Range> split(const Range& range) const {
    const std::size_t units = (range.count + grain_ - 1) / grain_;
    const std::size_t lower = std::min(range.count, (units + 1) / 2 * grain_);
    return {{range.begin, lower}, {range.begin + lower, range.count - lower}};
  }

  int rank_at(int index) const { return team_.ranks[static_cast<std::size_t>(index)]; }
  Place work() const { return partial(team_.partial_base); }
  // Where an arriving sum is stored. A single rank's contribution is not a partial sum and arrives
  // in scratch.
  Place arrival(bool is_partial) const {
    return is_partial ? partial(team_.partial_base + count_) : scratch(team_.scratch_base);
  }

  // Adds up the contributions of the members [first, first + number), which include this rank.
  Sum reduce_node(int first, int number, bool is_last) {
    const int left = floor_power_of_two(number);
    const int right = number - left;
    if (right == 0) return reduce_power_of_two(first, left, is_last);
    if (team_.index >= first + left) {
      const Sum sum = reduce_node(first + left, right, false);
      hand_over(sum, first, left, right);
      return sum;
    }
    const Sum sum = reduce_power_of_two(first, left, false);
    const int sender = first + left + (team_.index - first) % floor_power_of_two(right);
    const Place theirs = arrival(right > 1 || team_.leaf_is_partial());
    builder_.receive(rank_at(sender), theirs, theirs, sum.range.count);
    const Operand own{sum.place + sum.range.begin, -1, sum.ranks};
    const Operand rest{theirs, -1, static_cast<std::size_t>(right) * team_.leaf_ranks};
    return add({own, rest}, sum.range, is_last);
  }

  // Each owner of the right part sends each range of its sum to the member of the left part that
  // holds the same range.
  void hand_over(const Sum& sum, int first, int left, int right) {
    const int owners = floor_power_of_two(right);
    const int index = team_.index - first - left;
    if (index >= owners) return;
    for (int member = index; member < left; member += owners) {
      const Range range = range_of(member, levels_of(left));
      const Place from = sum.place + range.begin;
      builder_.send(rank_at(first + member), from, arrival(from.space == Space::kPartial),
                    range.count);
    }
  }

  Sum reduce_power_of_two(int first, int number, bool is_last) {
    Sum sum{team_.leaf, {0, count_}, team_.leaf_ranks};
    if (number == 1 && is_last) {
      return add({{team_.leaf, -1, team_.leaf_ranks}}, sum.range, true);
    }
    for (int level = 0; 1 << level < number; ++level) {
      const bool is_upper = ((team_.index - first) >> level & 1) != 0;
      const int partner = rank_at(first + ((team_.index - first) ^ (1 << level)));
      const auto [lower, upper] = split(sum.range);
      const Range keep = is_upper ? upper : lower;
      const Range give = is_upper ? lower : upper;
      const Place theirs = arrival(sum.place.space == Space::kPartial);
      builder_.send(partner, sum.place + give.begin, theirs, give.count);
      builder_.receive(partner, sum.place + keep.begin, theirs, keep.count);
      const Operand own{sum.place + keep.begin, -1, sum.ranks};
      const Operand other{theirs, -1, sum.ranks};
      sum = add(is_upper ? std::vector{other, own} : std::vector{own, other}, keep,
                is_last && 2 << level == number);
    }
    return sum;
  }

  Sum add(const std::vector<Operand>& operands, const Range& range, bool is_last) {
    std::size_t ranks = 0;
    for (const Operand& operand : operands) ranks += operand.num_ranks;
    const Place to = is_last ? team_.result : work();
    builder_.reduce(operands, to + range.begin, range.count);
    return {to, range, ranks};
  }

  void send_result(int index, const Range& range) {
    const Place place = team_.result + range.begin;
    builder_.send(rank_at(index), place, place, range.count);
  }
  void receive_result(int index, const Range& range) {
    const Place place = team_.result + range.begin;
    builder_.receive(rank_at(index), place, place, range.count);
  }

  ScheduleBuilder& builder_;
  const Team& team_;
  const std::size_t count_;
  const std::size_t grain_;
};

Team everybody(const ScheduleSpec& spec, Place result) {
  Team team;
  for (int rank = 0; rank < spec.world_size; ++rank) team.ranks.push_back(rank);
  team.index = spec.rank;
  team.leaf = input(0);
  team.result = result;
  return team;
}

// After the halving, the owner of a range sends each block in it to the block's rank.
void build_halving_reduce_scatter(ScheduleBuilder& builder, const ScheduleSpec& spec) {
  const auto world = static_cast<std::size_t>(spec.world_size);
  Team team = everybody(spec, scratch(0));
  team.scratch_base = spec.count * world;
  Halving halving(builder, team, spec.count * world, spec.count);
  halving.reduce();
  const auto own = static_cast<std::size_t>(spec.rank);
  const int giver = halving.owner_of(own * spec.count);
  const auto receive = [&] {
    builder.receive(giver, scratch(own * spec.count), output(0), spec.count);
  };
  // Every rank handles the owners in ascending order.
  if (giver < spec.rank) receive();
  if (spec.rank < halving.num_owners()) {
    const Range range = halving.range_of(spec.rank);
    for (std::size_t at = range.begin; at < range.begin + range.count; at += spec.count) {
      const auto rank = static_cast<int>(at / spec.count);
      if (rank == spec.rank) {
        builder.copy(scratch(at), output(0), spec.count);
      } else {
        builder.send(rank, scratch(at), output(0), spec.count);
      }
    }
  }
  if (giver > spec.rank) receive();
}

void build_all_gather(ScheduleBuilder& builder, const ScheduleSpec& spec) {
  const int world = spec.world_size;
  const auto start_of = [&](int rank) { return spec.placed(rank, spec.rank).offset; };
  const auto end_of = [&](int rank) {
    const Block block = spec.placed(rank, spec.rank);
    return block.offset + block.count;
  };
  // Calls `body` for the blocks of `number` ranks from `first` on, wrapping around at the end: once
  // for each contiguous run, so at most twice.
  const auto for_each_run = [&](int first, int number, auto body) {
    const int last = std::min(first + number, world);
    body(output(start_of(first)), end_of(last - 1) - start_of(first));
    if (first + number > world) {
      body(output(start_of(0)), end_of(first + number - world - 1) - start_of(0));
    }
  };
  builder.copy(input(0), output(start_of(spec.rank)), spec.given(spec.rank, spec.rank).count);
  for (int distance = 1; distance < world; distance *= 2) {
    const int number = std::min(distance, world - distance);
    const int receiver = (spec.rank - distance + world) % world;
    const int sender = (spec.rank + distance) % world;
    for_each_run(spec.rank, number,
                 [&](Place run, std::size_t count) { builder.send(receiver, run, run, count); });
    for_each_run(sender, number,
                 [&](Place run, std::size_t count) { builder.receive(sender, run, run, count); });
  }
}

}  // namespace

void add_halving_all_reduce(ScheduleBuilder& builder, const Team& team, std::size_t count) {
  Halving halving(builder, team, count, kGrain);
  halving.reduce();
  halving.gather();
}

// In level k, 2^k members exchange sums with the next 2^k members. If fewer than 2^k members
// follow, each of them sends its sum to one or more of the 2^k members before them.
void add_doubling_all_reduce(ScheduleBuilder& builder, const Team& team, std::size_t count) {
  const auto rank_at = [&](int index) { return team.ranks[static_cast<std::size_t>(index)]; };
  const auto ranks_of = [&](int members) {
    return static_cast<std::size_t>(members) * team.leaf_ranks;
  };
  Place sum = team.leaf;
  int level = 0;
  for (int size = 1; size < team.size(); size *= 2, ++level) {
    const int begin = team.index / (2 * size) * (2 * size);
    const int middle = begin + size;
    const int right = std::min(size, team.size() - middle);
    if (right <= 0) continue;
    const bool is_right = team.index >= middle;
    const int own_members = is_right ? right : size;
    const int their_members = is_right ? size : right;
    const bool theirs_is_partial = their_members > 1 || team.leaf_is_partial();
    const std::size_t slot = static_cast<std::size_t>(level) * count;
    const Place theirs = theirs_is_partial ? partial(team.partial_base + count + slot)
                                           : scratch(team.scratch_base + slot);
    const Place there = own_members > 1 || team.leaf_is_partial()
                            ? partial(team.partial_base + count + slot)
                            : scratch(team.scratch_base + slot);
    const int offset = team.index - (is_right ? middle : begin);
    if (is_right) {
      for (int member = offset; member < size; member += right) {
        builder.send(rank_at(begin + member), sum, there, count);
      }
      builder.receive(rank_at(begin + offset), theirs, theirs, count);
    } else {
      if (offset < right) builder.send(rank_at(middle + offset), sum, there, count);
      builder.receive(rank_at(middle + offset % right), theirs, theirs, count);
    }
    const Operand own{sum, -1, ranks_of(own_members)};
    const Operand other{theirs, -1, ranks_of(their_members)};
    const bool is_last = 2 * size >= team.size();
    sum = is_last ? team.result : partial(team.partial_base);
    builder.reduce(is_right ? std::vector{other, own} : std::vector{own, other}, sum, count);
  }
  if (team.size() == 1) builder.reduce({{team.leaf, -1, team.leaf_ranks}}, team.result, count);
}

Schedule build_doubling(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  if (spec.op == Op::kAllReduce) {
    add_doubling_all_reduce(builder, everybody(spec, output(0)), spec.count);
  } else {
    build_all_gather(builder, spec);
  }
  return builder.take();
}

Schedule build_halving(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  if (spec.op == Op::kAllReduce) {
    add_halving_all_reduce(builder, everybody(spec, output(0)), spec.count);
  } else if (spec.count > 0) {
    build_halving_reduce_scatter(builder, spec);
  }
  return builder.take();
}

}  // namespace paceline
