#include "apps/bench/operation.h"

#include <algorithm>

namespace paceline::bench {
namespace {

// Blocks in the largest buffer.
std::size_t blocks_of(Op op, int world_size) {
  return gives_blocks(op) || gets_blocks(op) ? static_cast<std::size_t>(world_size) : 1;
}

}  // namespace

std::string_view name_of(Operation operation) {
  if (operation.is_coalesced) return "all_reduce_coalesced";
  return operation.op == Op::kSend ? "send_recv" : paceline::name_of(operation.op);
}

std::string_view name_of(Placement placement) {
  return placement == Placement::kInPlace ? "in" : "out";
}

std::string_view name_of(MemoryKind memory) {
  return memory == MemoryKind::kSymmetric ? "symmetric" : "ordinary";
}

const std::vector<Operation>& measurable_ops() {
  static const auto& ops = *new std::vector<Operation>{Op::kAllReduce,
                                                       Op::kReduceScatter,
                                                       Op::kAllGather,
                                                       Op::kBroadcast,
                                                       Op::kReduce,
                                                       Op::kAllToAll,
                                                       Op::kGather,
                                                       Op::kScatter,
                                                       Op::kBarrier,
                                                       Op::kAllGatherV,
                                                       Op::kReduceScatterV,
                                                       Op::kAllToAllV,
                                                       {Op::kAllReduce, true},
                                                       Op::kSend};
  return ops;
}

std::optional<Operation> op_named(std::string_view name) {
  for (const Operation operation : measurable_ops()) {
    if (name_of(operation) == name) return operation;
  }
  return {};
}

bool is_plannable(Operation operation) {
  return !operation.is_coalesced && operation.op != Op::kSend && !has_counts(operation.op);
}

std::optional<Dtype> dtype_named(std::string_view name) {
  for (const Dtype dtype : kAllDtypes) {
    if (paceline::name_of(dtype) == name) return dtype;
  }
  return {};
}

bool has_form(Operation operation, Placement placement) {
  const Op op = operation.op;
  if (!operation.is_coalesced && (op == Op::kAllReduce || op == Op::kAllGather)) return true;
  return placement == usual_placement(operation);
}

Placement usual_placement(Operation operation) {
  const Op op = operation.op;
  const bool in_place = op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kReduce;
  return in_place ? Placement::kInPlace : Placement::kOutOfPlace;
}

Placement placement_for(Operation operation, std::optional<Placement> wanted) {
  return wanted && has_form(operation, *wanted) ? *wanted : usual_placement(operation);
}

std::size_t count_for(Operation operation, Dtype dtype, int world_size, std::size_t bytes) {
  if (operation.op == Op::kBarrier) return 0;
  const std::size_t parts = operation.is_coalesced ? kCoalescedBuffers : 1;
  const std::size_t unit = size_of(dtype) * blocks_of(operation.op, world_size) * parts;
  return std::max<std::size_t>(1, (bytes + unit - 1) / unit) * parts;
}

std::vector<std::size_t> different_sizes(Operation operation, Dtype dtype, int world_size,
                                         std::span<const std::size_t> sizes) {
  if (operation.op == Op::kBarrier) return {0};
  std::vector<std::size_t> different;
  std::optional<std::size_t> last;
  for (const std::size_t size : sizes) {
    const std::size_t count = count_for(operation, dtype, world_size, size);
    if (count != last) different.push_back(size);
    last = count;
  }
  return different;
}

std::size_t bytes_of(Operation operation, Dtype dtype, int world_size, std::size_t count) {
  return count * size_of(dtype) * blocks_of(operation.op, world_size);
}

std::size_t block_count(const Collective& call) {
  return has_counts(call.op) ? call.counts.front() : call.count;
}

std::size_t elements_in(const Collective& call, int rank, int world_size) {
  return call.op == Op::kSend ? call.count : input_count(call, rank, world_size);
}

std::size_t elements_out(const Collective& call, int rank, int world_size) {
  return call.op == Op::kSend ? call.count : output_count(call, rank, world_size);
}

double bus_factor(Operation operation, int world_size) {
  const double n = world_size;
  if (operation.op == Op::kAllReduce) return 2 * (n - 1) / n;
  return gives_blocks(operation.op) || gets_blocks(operation.op) ? (n - 1) / n : 1;
}

double algorithm_bandwidth(std::size_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

}  // namespace paceline::bench
