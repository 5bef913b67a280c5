#include "paceline/collectives/backends/paceline/zero_copy.h"

#include <algorithm>

#include "paceline/collectives/algorithms/direct.h"
#include "paceline/collectives/kernels/reduce.h"
#include "paceline/core/copy.h"

namespace paceline {
namespace {

// From here on a broadcast is the root's work, too.
constexpr std::size_t kLeastPushedBytes = 64 << 10;
// Of what a rank hands to all, it stays in a core's cache from target to target.
constexpr std::size_t kHandedBytes = 64 << 10;

// As copy_bytes(), for what is too large for the caches.
void copy_large_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from) copy_past_caches(to, from, bytes);
}

// Bytes of a broadcast that each peer reads; the root writes the rest into every peer's memory
// meanwhile. As much work for everybody, and no cache line is written by two.
std::size_t pulled_bytes(std::size_t bytes, int world) {
  if (bytes < kLeastPushedBytes) return bytes;
  constexpr std::size_t kLine = 64;
  const auto ranks = static_cast<std::size_t>(world);
  return bytes / ranks * (ranks - 1) / kLine * kLine;
}

}  // namespace

ZeroCopy::ZeroCopy(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions,
                   SharedSchedules& schedules)
    : mesh_(mesh),
      share_(share),
      regions_(regions),
      schedules_(schedules),
      contributions_(static_cast<std::size_t>(mesh.world_size())) {}

void ZeroCopy::run(const SharedOperation& operation) {
  const auto& call = operation.call;
  if (call.op == Op::kBroadcast) {
    broadcast_together(operation);
    return;
  }
  if (call.op == Op::kAllGather || call.op == Op::kAllToAll) {
    hand_out(operation);
    return;
  }
  const ScheduleSpec spec{call.op,    mesh_.rank(), mesh_.world_size(), call.root,
                          call.count, call.count,   call.count};
  const Schedule& schedule = schedules_.find(spec, build_direct);
  const auto copy = copy_for(operation);
  const auto peer_input = [&](int peer, std::size_t offset) {
    return regions_.at(peer, share_.announced(peer).input) + offset * operation.element;
  };
  for (const Step& step : schedule.steps) {
    const std::size_t bytes = step.count * operation.element;
    if (step.kind == Step::Kind::kReduce) {
      reduce_and_deliver(operation, schedule, step);
    } else if (step.kind == Step::Kind::kCopy) {
      copy(call.output + step.to.offset * operation.element,
           call.input + step.from.offset * operation.element, bytes);
    } else if (step.kind == Step::Kind::kReceive && step.from.space == Space::kInput) {
      const std::byte* source = peer_input(step.peer, step.from.offset);
      if (step.to.space == Space::kScratch) {
        contributions_[static_cast<std::size_t>(step.peer)] = source;
      } else {
        copy(call.output + step.to.offset * operation.element, source, bytes);
      }
    }  // a send of input is the peer's receive; results were delivered by the reduce
  }
  share_.meet(operation);
}

// The root writes its share into every peer's memory while the peers read the rest.
void ZeroCopy::broadcast_together(const SharedOperation& operation) {
  const auto& call = operation.call;
  const auto copy = copy_for(operation);
  const std::size_t bytes = call.count * operation.element;
  const std::size_t pulled = pulled_bytes(bytes, mesh_.world_size());
  if (mesh_.rank() == call.root) {
    copy(call.output, call.input, bytes);
    for (int peer = 0; peer < mesh_.world_size(); ++peer) {
      if (peer == call.root) continue;
      copy(regions_.at(peer, share_.announced(peer).output) + pulled, call.input + pulled,
           bytes - pulled);
    }
  } else {
    copy(call.output, regions_.at(call.root, share_.announced(call.root).input), pulled);
  }
  share_.meet(operation);
}

// Every rank writes its block, or in an all_to_all the one for each, into every output: it reads
// what it has just written itself, and the block for all only once, piece by piece, where fetching
// would read them from their owners' caches.
void ZeroCopy::hand_out(const SharedOperation& operation) {
  const auto& call = operation.call;
  const auto copy = copy_for(operation);
  const std::size_t bytes = call.count * operation.element;
  const std::size_t place = static_cast<std::size_t>(mesh_.rank()) * bytes;
  const std::size_t stride = call.op == Op::kAllToAll ? bytes : 0;
  const std::size_t most = stride > 0 ? bytes : kHandedBytes;
  for (std::size_t begin = 0; begin < bytes; begin += most) {
    const std::size_t piece = std::min(most, bytes - begin);
    for (int i = 0; i < mesh_.world_size(); ++i) {  // beginning with its own, then the next rank's
      const int rank = (mesh_.rank() + i) % mesh_.world_size();
      std::byte* const output =
          i == 0 ? call.output : regions_.at(rank, share_.announced(rank).output);
      copy(output + place + begin, call.input + static_cast<std::size_t>(rank) * stride + begin,
           piece);
    }
  }
  share_.meet(operation);
}

// Past the caches when what the ranks read and write together does not fit there anyway.
ZeroCopy::Copy ZeroCopy::copy_for(const SharedOperation& operation) const {
  const int world = mesh_.world_size();
  std::size_t elements = 0;
  for (int rank = 0; rank < world; ++rank) {
    elements +=
        input_count(operation.call, rank, world) + output_count(operation.call, rank, world);
  }
  const std::size_t cache = last_level_cache_bytes();
  return elements * operation.element > cache + cache / 4 ? copy_large_bytes : copy_bytes;
}

// Reduces into this rank's output, if it has one, and into the output of every peer that the
// schedule sends the result to.
void ZeroCopy::reduce_and_deliver(const SharedOperation& operation, const Schedule& schedule,
                                  const Step& step) {
  const auto& call = operation.call;
  const std::size_t element = operation.element;
  auto& targets = targets_;
  targets.clear();
  if (step.to.space == Space::kOutput) targets.push_back(call.output + step.to.offset * element);
  for (const Step& send : schedule.steps) {
    if (send.kind != Step::Kind::kSend || send.from.space == Space::kInput) continue;
    targets.push_back(regions_.at(send.peer, share_.announced(send.peer).output) +
                      send.to.offset * element);
  }
  contributions_[static_cast<std::size_t>(mesh_.rank())] =
      call.input + own_offset(schedule, step) * element;
  reduce(contributions_, targets, step.count, call.dtype, call.reduce_op);
}

}  // namespace paceline
