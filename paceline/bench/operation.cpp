#include "paceline/bench/operation.h"

#include <algorithm>

namespace paceline::bench {
namespace {

// Blocks of Collective::count elements in the largest buffer.
std::size_t blocks_of(Op op, int world_size) {
  const bool whole = op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kReduce;
  return whole ? 1 : static_cast<std::size_t>(world_size);
}

}  // namespace

std::string_view name_of(Placement placement) {
  return placement == Placement::kInPlace ? "in" : "out";
}

std::string_view name_of(MemoryKind memory) {
  return memory == MemoryKind::kSymmetric ? "symmetric" : "ordinary";
}

const std::vector<Op>& measurable_ops() {
  static const std::vector<Op> kOps = {Op::kAllReduce, Op::kReduceScatter, Op::kAllGather,
                                       Op::kBroadcast, Op::kReduce,        Op::kAllToAll,
                                       Op::kGather,    Op::kScatter,       Op::kBarrier};
  return kOps;
}

std::optional<Op> op_named(std::string_view name) {
  for (const Op op : measurable_ops()) {
    if (paceline::name_of(op) == name) return op;
  }
  return {};
}

std::optional<Dtype> dtype_named(std::string_view name) {
  for (const Dtype dtype : kAllDtypes) {
    if (paceline::name_of(dtype) == name) return dtype;
  }
  return {};
}

bool has_form(Op op, Placement placement) {
  if (op == Op::kAllReduce || op == Op::kAllGather) return true;
  return placement == usual_placement(op);
}

Placement usual_placement(Op op) {
  const bool in_place = op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kReduce;
  return in_place ? Placement::kInPlace : Placement::kOutOfPlace;
}

Placement placement_for(Op op, std::optional<Placement> wanted) {
  return wanted && has_form(op, *wanted) ? *wanted : usual_placement(op);
}

std::size_t count_for(Op op, Dtype dtype, int world_size, std::size_t bytes) {
  if (op == Op::kBarrier) return 0;
  const std::size_t unit = size_of(dtype) * blocks_of(op, world_size);
  return std::max<std::size_t>(1, (bytes + unit - 1) / unit);
}

std::size_t bytes_of(Op op, Dtype dtype, int world_size, std::size_t count) {
  return count * size_of(dtype) * blocks_of(op, world_size);
}

double bus_factor(Op op, int world_size) {
  const double n = world_size;
  switch (op) {
    case Op::kAllReduce:
      return 2 * (n - 1) / n;
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllToAll:
    case Op::kGather:
    case Op::kScatter:
      return (n - 1) / n;
    default:
      return 1;
  }
}

double algorithm_bandwidth(std::size_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

}  // namespace paceline::bench
