#include "paceline/collectives/algorithms/by_package.h"

#include "paceline/collectives/algorithms/direct.h"
#include "paceline/collectives/algorithms/schedule_builder.h"
#include "paceline/collectives/kernels/reduce.h"

namespace paceline {
namespace {

constexpr std::size_t kLine = 64;           // bytes
constexpr std::size_t kLaneAlignment = 64;  // elements, as chunk_of() rounds

class ByPackageBuilder {
 public:
  ByPackageBuilder(ScheduleBuilder& builder, const ScheduleSpec& spec)
      : builder_(builder),
        spec_(spec),
        num_packages_(static_cast<int>(spec.hosts->size())),
        ranks_(static_cast<int>(spec.hosts->members.front().size())),
        package_(spec.rank / ranks_),
        position_(spec.rank % ranks_) {}

  void all_reduce() {
    const Chunk lane = lane_of(position_);
    builder_.reduce(contributions(lane.begin), partial(0), lane.count());
    builder_.meet();
    builder_.reduce(sums_of_packages(), scratch(lane.begin), lane.count());
    builder_.meet();
    fetch_lanes();
  }

  void reduce() {
    const int root_package = spec_.root / ranks_;
    const Chunk lane = lane_of(position_);
    builder_.reduce(contributions(lane.begin), partial(0), lane.count());
    builder_.meet();
    if (package_ == root_package) {
      builder_.reduce(sums_of_packages(), scratch(lane.begin), lane.count());
    }
    builder_.meet();
    if (spec_.rank == spec_.root) fetch_lanes();
  }

  void reduce_scatter() {
    for (int other = 0; other < num_packages_; ++other) {
      if (other == package_) continue;
      builder_.reduce(contributions(spec_.given(spec_.rank, carrier(other)).offset),
                      partial(sum_for(other, package_)), spec_.count);
    }
    builder_.meet();
    std::vector<Operand> operands;
    for (int from = 0; from < num_packages_; ++from) {
      if (from == package_) {
        const auto own = contributions(spec_.given(spec_.rank, spec_.rank).offset);
        operands.insert(operands.end(), own.begin(), own.end());
      } else {
        operands.push_back({partial(sum_for(package_, from)), carrier(from), num_ranks()});
      }
    }
    builder_.reduce(operands, output(0), spec_.count);
  }

 private:
  std::size_t num_ranks() const { return static_cast<std::size_t>(ranks_); }
  Chunk lane_of(int position) const { return chunk_of(spec_.count, position, ranks_); }
  // The rank that carries this rank's lane on another package.
  int carrier(int package) const { return package * ranks_ + position_; }

  // This package's, at an offset of the input.
  std::vector<Operand> contributions(std::size_t offset) const {
    std::vector<Operand> operands;
    for (int i = 0; i < ranks_; ++i) operands.push_back({input(offset), package_ * ranks_ + i});
    return operands;
  }
  // All packages' sums of this rank's lane.
  std::vector<Operand> sums_of_packages() const {
    std::vector<Operand> operands;
    for (int package = 0; package < num_packages_; ++package) {
      operands.push_back({partial(0), carrier(package), num_ranks()});
    }
    return operands;
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

  ScheduleBuilder& builder_;
  const ScheduleSpec& spec_;
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

Schedule build_by_package(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  ByPackageBuilder by_package(builder, spec);
  switch (spec.op) {
    case Op::kAllReduce:
      by_package.all_reduce();
      break;
    case Op::kReduce:
      by_package.reduce();
      break;
    case Op::kReduceScatter:
      by_package.reduce_scatter();
      break;
    default:
      break;
  }
  return builder.take();
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
