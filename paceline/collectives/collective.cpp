#include "paceline/collectives/collective.h"

#include <algorithm>
#include <numeric>

#include <xxhash.h>

#include "paceline/core/check.h"

namespace paceline {
namespace {

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// What one rank gives or gets in an operation with unequal counts.
std::size_t row_sum(const Collective& call, int rank, int world_size) {
  const auto world = static_cast<std::size_t>(world_size);
  return sum(call.counts.subspan(static_cast<std::size_t>(rank) * world, world));
}

std::size_t column_sum(const Collective& call, int rank, int world_size) {
  const auto world = static_cast<std::size_t>(world_size);
  std::size_t total = 0;
  for (std::size_t from = 0; from < world; ++from) {
    total += call.counts[from * world + static_cast<std::size_t>(rank)];
  }
  return total;
}

}  // namespace

std::string_view name_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kReduce:
      return "reduce";
    case Op::kAllGather:
      return "all_gather";
    case Op::kGather:
      return "gather";
    case Op::kScatter:
      return "scatter";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kBarrier:
      return "barrier";
    case Op::kSend:
      return "send";
    case Op::kReceive:
      return "recv";
    case Op::kAllocate:
      return "allocate_symmetric";
    case Op::kAllGatherV:
      return "all_gather_v";
    case Op::kReduceScatterV:
      return "reduce_scatter_v";
    case Op::kAllToAllV:
      return "all_to_all_v";
    case Op::kNewGroup:
      return "new_group";
    case Op::kSplit:
      return "split";
    case Op::kTakeTurns:
      return "take_turns";
  }
  return "an unknown operation";
}

bool reduces(Op op) {
  return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter ||
         op == Op::kReduceScatterV;
}

bool has_root(Op op) {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter;
}

bool has_counts(Op op) {
  return op == Op::kAllGatherV || op == Op::kReduceScatterV || op == Op::kAllToAllV;
}

bool makes_group(Op op) { return op == Op::kNewGroup || op == Op::kSplit; }

std::optional<std::size_t> in_place_offset(const Collective& call, int rank) {
  switch (call.op) {
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllGather:
    case Op::kReduceScatter:
      return call.count * static_cast<std::size_t>(rank);
    case Op::kAllGatherV:
    case Op::kReduceScatterV:
      return std::accumulate(call.counts.begin(), call.counts.begin() + rank, std::size_t{0});
    case Op::kAllToAll:
    case Op::kAllToAllV:
      return {};
    default:
      return 0;
  }
}

std::size_t input_count(const Collective& call, int rank, int world_size) {
  const auto world = static_cast<std::size_t>(world_size);
  switch (call.op) {
    case Op::kAllReduce:
    case Op::kReduce:
    case Op::kAllGather:
    case Op::kGather:
      return call.count;
    case Op::kBroadcast:
      return rank == call.root ? call.count : 0;
    case Op::kScatter:
      return rank == call.root ? call.count * world : 0;
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return call.count * world;
    case Op::kAllGatherV:
      return call.counts[static_cast<std::size_t>(rank)];
    case Op::kReduceScatterV:
      return call.count;
    case Op::kAllToAllV:
      return row_sum(call, rank, world_size);
    default:
      return 0;
  }
}

std::size_t output_count(const Collective& call, int rank, int world_size) {
  const auto world = static_cast<std::size_t>(world_size);
  switch (call.op) {
    case Op::kAllReduce:
    case Op::kBroadcast:
    case Op::kScatter:
    case Op::kReduceScatter:
      return call.count;
    case Op::kReduce:
      return rank == call.root ? call.count : 0;
    case Op::kGather:
      return rank == call.root ? call.count * world : 0;
    case Op::kAllGather:
    case Op::kAllToAll:
      return call.count * world;
    case Op::kAllGatherV:
      return call.count;
    case Op::kReduceScatterV:
      return call.counts[static_cast<std::size_t>(rank)];
    case Op::kAllToAllV:
      return column_sum(call, rank, world_size);
    default:
      return 0;
  }
}

std::uint32_t layout_of(std::span<const std::size_t> counts) {
  const auto hash = static_cast<std::uint32_t>(XXH3_64bits(counts.data(), counts.size_bytes()));
  return std::max(hash, 1u);
}

std::string Fingerprint::describe() const {
  std::string text = fmt::format("{} #{}", name_of(op), sequence);
  if (op == Op::kBarrier || makes_group(op)) return text;
  text += fmt::format(" ({} x {}", name_of(dtype), count);
  if (reduces(op)) text += fmt::format(", {}", name_of(reduce_op));
  if (has_root(op)) text += fmt::format(", root {}", root);
  if (device == Device::kCuda) text += ", on cuda";
  if (layout != 0) text += fmt::format(", counts {:08x}", layout);
  return text + ")";
}

Fingerprint make_fingerprint(const Collective& call, std::uint32_t sequence,
                             std::uint32_t generation, std::uint64_t group) {
  Fingerprint fingerprint;
  fingerprint.op = call.part_of.value_or(call.op);
  fingerprint.reduce_op = reduces(call.op) ? call.reduce_op : ReduceOp::kSum;
  fingerprint.dtype = call.dtype;
  fingerprint.device = call.device;
  fingerprint.root = has_root(call.op) ? call.root : 0;
  fingerprint.count = call.count;
  fingerprint.sequence = sequence;
  fingerprint.layout = call.layout;
  // Generations of one group never meet in one store key; the hash catches what does anyway.
  fingerprint.group = group ^ (generation * 0x9e3779b97f4a7c15u);
  return fingerprint;
}

void require_same(const Fingerprint& mine, const Fingerprint& theirs, const std::string& self,
                  const std::string& peer_name, const std::string& group_name) {
  if (mine == theirs) return;
  if (mine.group != theirs.group) {
    fail(ErrorCode::kInvalid, "{}: {} sent a message of another group or generation to group {}",
         self, peer_name, group_name);
  }
  fail(ErrorCode::kInvalid,
       "{}: collectives do not match in group {}: this rank called {}, {} called {}; every "
       "rank must make the same calls in the same order{}",
       self, group_name, mine.describe(), peer_name, theirs.describe(),
       mine.layout == theirs.layout ? "" : ", with the same list of counts");
}

}  // namespace paceline
