#include "paceline/engine/collectives/algorithms/by_package.h"

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"
#include "paceline/engine/collectives/kernels/reduce.h"

namespace paceline {
namespace {

constexpr std::size_t kLine = 64;           // bytes
constexpr std::size_t kLaneAlignment = 64;  // elements, as chunk_of() rounds

class ByPackageBuilder {
 public:
  ByPackageBuilder(const ScheduleSpec& spec, bool is_staged)
      : spec_(spec),
        is_staged_(is_staged),
        builder_(spec),
        num_packages_(static_cast<int>(spec.hosts->size())),
        ranks_(static_cast<int>(spec.hosts->members.front().size())),
        package_(spec.rank / ranks_),
        position_(spec.rank % ranks_) {}

  Schedule build() {
    if (spec_.op == Op::kReduceScatter) {
      reduce_blocks();
    } else {
      reduce_lanes();
    }
    return builder_.take();
  }

 private:
  void reduce_lanes() {
    const Chunk lane = lane_of(position_);
    if (is_staged_) stage_other_lanes(lane);
    builder_.reduce(contributions(lane.begin, lane.begin), partial(0), lane.count());
    builder_.meet();
    if (spec_.op == Op::kAllReduce || package_ == spec_.root / ranks_) {
      builder_.reduce_to(sums_of_packages(), targets_of(lane.begin), lane.count());
    }
    if (!is_staged_) return;
    builder_.meet();
    if (spec_.op == Op::kAllReduce || spec_.rank == spec_.root) fetch_lanes();
  }

  void reduce_blocks() {
    if (is_staged_) stage_other_blocks();
    for (int other = 0; other < num_packages_; ++other) {
      if (other == package_) continue;
      builder_.reduce(contributions_to(carrier(other)), partial(sum_for(other, package_)),
                      spec_.count);
    }
    builder_.meet();
    std::vector<Operand> operands;
    for (int from = 0; from < num_packages_; ++from) {
      if (from == package_) {
        const auto own = contributions_to(spec_.rank);
        operands.insert(operands.end(), own.begin(), own.end());
      } else {
        operands.push_back({partial(sum_for(package_, from)), carrier(from), num_ranks()});
      }
    }
    builder_.reduce(operands, output(0), spec_.count);
  }

  std::size_t num_ranks() const { return static_cast<std::size_t>(ranks_); }
  Chunk lane_of(int position) const { return chunk_of(spec_.count, position, ranks_); }
  // The rank that carries this rank's lane on another package.
  int carrier(int package) const { return package * ranks_ + position_; }

  // All but what only this rank reads: its own lane.
  void stage_other_lanes(const Chunk& lane) {
    builder_.copy(input(0), scratch(0), lane.begin);
    builder_.copy(input(lane.end), scratch(lane.end), spec_.count - lane.end);
    builder_.meet();
  }
  void stage_other_blocks() {
    for (int block = 0; block < spec_.world_size; ++block) {
      if (block % ranks_ == position_) continue;
      builder_.copy(input(spec_.given(spec_.rank, block).offset), staged_block(block), spec_.count);
    }
    builder_.meet();
  }
  Place staged_block(int block) const {
    return scratch(static_cast<std::size_t>(block) * spec_.count);
  }

  // This package's, at an offset of the input and of the scratch.
  std::vector<Operand> contributions(std::size_t in_input, std::size_t in_scratch) const {
    std::vector<Operand> operands;
    for (int i = 0; i < ranks_; ++i) {
      const bool is_own = i == position_ || !is_staged_;
      operands.push_back({is_own ? input(in_input) : scratch(in_scratch), package_ * ranks_ + i});
    }
    return operands;
  }
  // This package's to the block of a rank.
  std::vector<Operand> contributions_to(int block) const {
    return contributions(spec_.given(spec_.rank, block).offset, staged_block(block).offset);
  }
  // All packages' sums of this rank's lane.
  std::vector<Operand> sums_of_packages() const {
    std::vector<Operand> operands;
    for (int package = 0; package < num_packages_; ++package) {
      operands.push_back({partial(0), carrier(package), num_ranks()});
    }
    return operands;
  }
  // Where the result at an offset of the output goes: to scratch, from which the package's ranks
  // fetch it, or to all of them that get it.
  std::vector<Target> targets_of(std::size_t offset) const {
    if (is_staged_) return {{scratch(offset), spec_.rank}};
    if (spec_.op == Op::kReduce) return {{output(offset), spec_.root}};
    std::vector<Target> targets;
    for (int i = 0; i < ranks_; ++i) targets.push_back({output(offset), package_ * ranks_ + i});
    return targets;
  }
  // Where a rank of package `from` keeps its sum for the rank of package `to`: one after the other,
  // without a place for its own.
  std::size_t sum_for(int to, int from) const {
    return static_cast<std::size_t>(to < from ? to : to - 1) * spec_.count;
  }
  void fetch_lanes() {
    for (int i = 0; i < ranks_; ++i) {
      const Chunk lane = lane_of(i);
      builder_.copy(scratch(lane.begin), output(lane.begin), lane.count(), package_ * ranks_ + i);
    }
  }

  const ScheduleSpec& spec_;
  const bool is_staged_;
  ScheduleBuilder builder_;
  const int num_packages_;
  const int ranks_;     // of each
  const int package_;   // this rank's
  const int position_;  // of this rank on it
};

// Blocks that a rank's input holds.
std::size_t blocks_in(Op op, const Hosts& packages) {
  return op == Op::kReduceScatter ? packages.host_of.size() : 1;
}

}  // namespace

bool serves_by_package(Op op) {
  return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter;
}

Schedule build_by_package_in_place(const ScheduleSpec& spec) {
  return ByPackageBuilder(spec, false).build();
}

Schedule build_by_package_staged(const ScheduleSpec& spec) {
  return ByPackageBuilder(spec, true).build();
}

PackageBytes bytes_between_packages(Op op, Dtype dtype, std::size_t count, const Hosts& packages) {
  const std::uint64_t others = packages.size() - 1;
  const std::uint64_t ranks = packages.members.front().size();
  const std::uint64_t buffer = count * blocks_in(op, packages);
  const std::uint64_t raw = ranks * others * buffer * size_of(dtype);
  const std::uint64_t sums = others * buffer * partial_size_of(dtype);
  switch (op) {
    case Op::kAllReduce:
      return {2 * raw, packages.size() * sums};
    case Op::kReduce:
      return {raw + raw / packages.host_of.size(), sums};
    case Op::kReduceScatter:
      return {raw, sums};
    default:
      return {};
  }
}

std::size_t by_package_piece_count(Op op, Dtype dtype, const Hosts& packages, std::size_t room,
                                   bool with_input) {
  const std::size_t sum = partial_size_of(dtype);
  const std::size_t ranks = packages.members.front().size();
  const std::size_t input = with_input ? blocks_in(op, packages) * size_of(dtype) : 0;
  const bool has_lanes = op != Op::kReduceScatter;
  // Of a piece of m elements, one of them is a lane's, but for what both are rounded up by.
  const std::size_t step = has_lanes ? ranks : 1;
  const std::size_t sums = has_lanes ? sum : (packages.size() - 1) * sum;
  const std::size_t usable = room - kLine - (has_lanes ? kLaneAlignment * sum : 0);
  return std::max<std::size_t>(1, usable / (step * input + sums) * step);
}

std::size_t partials_offset(Op op, Dtype dtype, const Hosts& packages, std::size_t count,
                            bool with_input) {
  if (!with_input) return 0;
  const std::size_t bytes = blocks_in(op, packages) * count * size_of(dtype);
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace paceline
