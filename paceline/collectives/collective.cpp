#include "paceline/collectives/collective.h"

#include "paceline/core/check.h"

namespace paceline {

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
  }
  return "an unknown operation";
}

bool reduces(Op op) {
  return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter;
}

bool has_root(Op op) {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter;
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
    default:
      return 0;
  }
}

std::string Fingerprint::describe() const {
  std::string text = fmt::format("{} #{}", name_of(op), sequence);
  if (op == Op::kBarrier) return text;
  text += fmt::format(" ({} x {}", name_of(dtype), count);
  if (reduces(op)) text += fmt::format(", {}", name_of(reduce_op));
  if (has_root(op)) text += fmt::format(", root {}", root);
  if (device == Device::kCuda) text += ", on cuda";
  return text + ")";
}

Fingerprint make_fingerprint(const Collective& call, std::uint32_t sequence,
                             std::uint32_t generation, std::uint64_t group) {
  Fingerprint fingerprint;
  fingerprint.op = call.op;
  fingerprint.reduce_op = reduces(call.op) ? call.reduce_op : ReduceOp::kSum;
  fingerprint.dtype = call.dtype;
  fingerprint.device = call.device;
  fingerprint.root = has_root(call.op) ? call.root : 0;
  fingerprint.count = call.count;
  fingerprint.sequence = sequence;
  fingerprint.generation = generation;
  fingerprint.group = group;
  return fingerprint;
}

void require_same(const Fingerprint& mine, const Fingerprint& theirs, int rank,
                  const std::string& peer_name, const std::string& group_name) {
  if (mine == theirs) return;
  if (mine.group != theirs.group || mine.generation != theirs.generation) {
    fail(ErrorCode::kInvalid,
         "rank {}: {} sent a message of another group or generation to group {}", rank, peer_name,
         group_name);
  }
  fail(ErrorCode::kInvalid,
       "rank {}: collectives do not match in group {}: this rank called {}, {} called {}; every "
       "rank "
       "must make the same calls in the same order",
       rank, group_name, mine.describe(), peer_name, theirs.describe());
}

}  // namespace paceline
