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
  switch (operation.call.op) {
    case Op::kBroadcast:
      broadcast_together(operation);
      break;
    case Op::kAllGather:
    case Op::kAllGatherV:
    case Op::kAllToAll:
    case Op::kAllToAllV:
      hand_out(operation);
      break;
    case Op::kReduceScatter:
    case Op::kReduceScatterV:
      reduce_own_block(operation);
      break;
    default:
      run_direct(operation);
      break;
  }
  share_.meet(operation);
}

void ZeroCopy::run_direct(const SharedOperation& operation) {
  const auto& call = operation.call;
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
}

// Every rank writes its block, or in an all_to_all the one for each, into every output: it reads
// what it has just written itself, and the block for all only once, piece by piece, where fetching
// would read them from their owners' caches.
void ZeroCopy::hand_out(const SharedOperation& operation) {
  const auto& call = operation.call;
  const auto copy = copy_for(operation);
  const BlockTable blocks = blocks_of(operation);
  const ScheduleSpec spec = spec_of(operation, blocks);
  const bool is_for_all = call.op == Op::kAllGather || call.op == Op::kAllGatherV;
  const std::size_t element = operation.element;
  const std::size_t most = is_for_all ? kHandedBytes / element : call.count;
  const std::size_t end = is_for_all ? spec.given(spec.rank, spec.rank).count : most;
  for (std::size_t begin = 0; begin < end; begin += most) {
    for (int i = 0; i < spec.world_size; ++i) {  // beginning with its own, then the next rank's
      const int to = (spec.rank + i) % spec.world_size;
      const Block given = spec.given(spec.rank, to);
      if (given.count <= begin) continue;
      std::byte* const output = i == 0 ? call.output : regions_.at(to, share_.announced(to).output);
      copy(output + (spec.placed(spec.rank, to).offset + begin) * element,
           call.input + (given.offset + begin) * element,
           std::min(most, given.count - begin) * element);
    }
  }
}

// Of a reduce_scatter: what every rank has for this one.
void ZeroCopy::reduce_own_block(const SharedOperation& operation) {
  const auto& call = operation.call;
  const BlockTable blocks = blocks_of(operation);
  const ScheduleSpec spec = spec_of(operation, blocks);
  const Block own = spec.given(spec.rank, spec.rank);
  if (own.count == 0) return;
  for (int rank = 0; rank < spec.world_size; ++rank) {
    const std::byte* input =
        rank == spec.rank ? call.input : regions_.at(rank, share_.announced(rank).input);
    contributions_[static_cast<std::size_t>(rank)] = input + own.offset * operation.element;
  }
  targets_.assign(1, call.output);
  reduce(contributions_, targets_, own.count, call.dtype, call.reduce_op, call.divisor);
}

// Empty where all blocks have one count.
BlockTable ZeroCopy::blocks_of(const SharedOperation& operation) const {
  if (!has_counts(operation.call.op)) return {};
  return BlockTable::of(operation.call, mesh_.world_size());
}

ScheduleSpec ZeroCopy::spec_of(const SharedOperation& operation, const BlockTable& blocks) const {
  const auto& call = operation.call;
  ScheduleSpec spec{call.op,    mesh_.rank(), mesh_.world_size(), call.root,
                    call.count, call.count,   call.count};
  spec.blocks = &blocks;
  return spec;
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
  reduce(contributions_, targets, step.count, call.dtype, call.reduce_op, call.divisor);
}

}  // namespace paceline
