#include "paceline/collectives/backends/paceline/shared_executor.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "paceline/collectives/algorithms/direct.h"
#include "paceline/collectives/kernels/copy.h"
#include "paceline/collectives/kernels/reduce.h"
#include "paceline/core/check.h"
#include "paceline/transport/shared_memory.h"

namespace paceline {
namespace {

constexpr std::size_t kStagingBytes =
    256 << 10;  // two of them per rank: they stay in a core's L2 cache
constexpr std::size_t kControlBytes = 4096;
static_assert(sizeof(ControlBlock) <= kControlBytes);

// Up to here one phase and a copy are cheaper than the two phases of zero-copy; ranks that share
// cores wait longer for each other.
constexpr std::size_t kTinyBytes = 4 << 10;
constexpr std::size_t kTinyBytesWhenSharingCores = 32 << 10;
// Up to here what peers read is copied before the ranks meet, which saves a phase.
constexpr std::size_t kSmallBytes = 16 << 10;
// Up to here, and staged, every rank reduces everything itself, which saves a phase. Two ranks read
// no more of each other's memory that way, whatever the size.
constexpr std::size_t kOneShotBytes = 8 << 10;
// From here on a broadcast in symmetric memory is the root's work, too.
constexpr std::size_t kLeastPushedBytes = 64 << 10;
constexpr std::size_t kMaxSchedules = 256;

bool gives_blocks(Op op) {
  return op == Op::kScatter || op == Op::kReduceScatter || op == Op::kAllToAll ||
         op == Op::kReduceScatterV || op == Op::kAllToAllV;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

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

std::uint64_t key_of(const ScheduleSpec& spec, bool one_shot) {
  std::uint64_t key = spec.count * 0x9e3779b97f4a7c15u;
  for (const std::uint64_t part : {spec.input_stride, spec.output_stride, std::uint64_t(spec.root),
                                   std::uint64_t(spec.op), std::uint64_t(one_shot)}) {
    key = (key ^ part) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  }
  return key;
}

bool same(const ScheduleSpec& a, const ScheduleSpec& b) {
  return a.op == b.op && a.root == b.root && a.count == b.count &&
         a.input_stride == b.input_stride && a.output_stride == b.output_stride;
}

// Where this rank's own contribution to a reduce begins in its input.
std::size_t own_offset(const Schedule& schedule, const Step& reduce) {
  for (std::size_t i = 0; i < reduce.num_operands; ++i) {
    const Place& place = schedule.operands[reduce.first_operand + i].place;
    if (place.space == Space::kInput) return place.offset;
  }
  return 0;
}

// What this rank reduces of its own input, and for whom.
Block own_chunk(const Schedule& schedule) {
  for (const Step& step : schedule.steps) {
    if (step.kind == Step::Kind::kReduce) return {own_offset(schedule, step), step.count};
  }
  return {};
}

bool is_shared(const Announcement& said) {
  return said.input.region != -1 && said.output.region != -1;
}

// Whether a rank said that it has memory in the region: then it has not freed it.
bool holds(const Announcement& said, std::int64_t region) {
  return region < 0 || said.input.region == region || said.output.region == region;
}

}  // namespace

struct SharedExecutor::Operation {
  const Collective& call;
  const Fingerprint& fingerprint;
  const WaitOptions& wait;
  std::size_t element;    // bytes
  std::size_t blocks_in;  // blocks of `count` in an input
  // When staged: every rank reduces everything, or there are results that others fetch.
  bool is_one_shot;
  bool hands_around() const {
    return call.op == Op::kReduce || (call.op == Op::kAllReduce && !is_one_shot);
  }
};

SharedExecutor::SharedExecutor(Mesh& mesh, Deadline deadline)
    : mesh_(mesh),
      blocks_(mesh.shared_memory()->allocate(kControlBytes + 2 * kStagingBytes, Pages::kPresent,
                                             deadline)),
      barrier_(mesh, *blocks_),
      most_tiny_(mesh.oversubscribed() ? kTinyBytesWhenSharingCores : kTinyBytes),
      most_one_shot_(mesh.world_size() == 2 ? std::numeric_limits<std::size_t>::max()
                                            : std::max(kOneShotBytes, most_tiny_)),
      announced_(static_cast<std::size_t>(mesh.world_size())),
      contributions_(static_cast<std::size_t>(mesh.world_size())) {}

std::shared_ptr<SharedBlocks> SharedExecutor::allocate(std::size_t bytes, Pages pages,
                                                       Deadline deadline) {
  auto blocks = mesh_.shared_memory()->allocate(bytes, pages, deadline);
  std::erase_if(regions_, [](const Region& region) { return region.owner.expired(); });
  regions_.push_back({num_allocations_++, blocks, blocks.get()});
  return blocks;
}

void SharedExecutor::run(const Collective& call, const Fingerprint& fingerprint,
                         const WaitOptions& wait) {
  const auto blocks = gives_blocks(call.op) ? static_cast<std::size_t>(mesh_.world_size()) : 1;
  const bool is_one_shot =
      call.op == Op::kAllReduce && call.count * size_of(call.dtype) <= most_one_shot_;
  const Operation operation{call, fingerprint, wait, size_of(call.dtype), blocks, is_one_shot};
  if (has_counts(call.op)) {
    enter(operation, {fingerprint});
    run_staged_blocks(operation);
  } else if (fits_one_piece(call, most_tiny_)) {
    run_tiny(operation);
  } else if (fits_one_piece(call, kSmallBytes)) {
    run_small(operation);
  } else {
    run_large(operation);
  }
}

// A function of what all ranks agree about, so that all choose the same way.
bool SharedExecutor::fits_one_piece(const Collective& call, std::size_t most_bytes) const {
  return call.count <= piece_count(call) && call.count * size_of(call.dtype) <= most_bytes;
}

// Nobody looks where the buffers lie.
void SharedExecutor::run_tiny(const Operation& operation) {
  const std::size_t count = operation.call.count;
  const Schedule& schedule = staged_schedule(operation, count);
  ++staging_turn_;
  copy_in(operation, schedule, 0, count);
  enter(operation, {operation.fingerprint});
  run_piece(operation, schedule, 0, count);
}

// A rank whose buffers are not shared copies before it knows of the others, which then is one phase
// less for all.
void SharedExecutor::run_small(const Operation& operation) {
  const std::size_t count = operation.call.count;
  const Announcement announcement = announcement_for(operation);
  const Schedule& schedule = staged_schedule(operation, count);
  ++staging_turn_;
  if (!is_shared(announcement)) copy_in(operation, schedule, 0, count);
  enter_with_places(operation, announcement);
  if (all_symmetric(operation)) {
    run_zero_copy(operation);
    return;
  }
  if (std::any_of(announced_.begin(), announced_.end(), is_shared)) {
    if (is_shared(announcement)) copy_in(operation, schedule, 0, count);
    meet(operation);
  }
  run_piece(operation, schedule, 0, count);
}

void SharedExecutor::run_large(const Operation& operation) {
  enter_with_places(operation, announcement_for(operation));
  if (all_symmetric(operation)) {
    run_zero_copy(operation);
  } else {
    run_staged(operation);
  }
}

std::size_t SharedExecutor::piece_count(const Collective& call) const {
  const auto blocks = gives_blocks(call.op) ? static_cast<std::size_t>(mesh_.world_size()) : 1;
  const std::size_t most = kStagingBytes / size_of(call.dtype) / blocks;
  return std::max<std::size_t>(1, most);
}

std::string SharedExecutor::explain(const PlanRequest& request) const {
  const std::size_t bytes = request.count * size_of(request.dtype);
  Collective call;
  call.op = request.op;
  call.dtype = request.dtype;
  call.count = request.count;
  std::string how = fmt::format(
      "read and written in place when all buffers lie in symmetric memory, otherwise by way of a "
      "staging area of {} KB",
      kStagingBytes >> 10);
  if (fits_one_piece(call, most_tiny_))
    how = fmt::format("by way of the staging area, up to {} KB", most_tiny_ >> 10);
  const bool one_shot = request.op == Op::kAllReduce && bytes <= most_tiny_;
  return fmt::format("{} of {} x {} ({} B) among {} ranks in shared memory: {}; {}\n",
                     name_of(request.op), request.count, name_of(request.dtype), bytes,
                     mesh_.world_size(), one_shot ? "one_shot" : "direct", how);
}

SharedPlace SharedExecutor::find(const void* data, std::size_t bytes) const {
  if (data == nullptr) return {-2, 0};
  const auto* begin = static_cast<const std::byte*>(data);
  for (const Region& region : regions_) {
    if (region.owner.expired()) continue;
    const std::byte* base = region.blocks->of(mesh_.rank());
    if (begin >= base && begin + bytes <= base + region.blocks->bytes())
      return {region.number, static_cast<std::uint64_t>(begin - base)};
  }
  return {};
}

// Null when this rank has freed it, or never had it.
SharedBlocks* SharedExecutor::region(std::int64_t number) const {
  for (const Region& region : regions_) {
    if (region.number == number) return region.owner.expired() ? nullptr : region.blocks;
  }
  return nullptr;
}

Announcement SharedExecutor::announcement_for(const Operation& operation) const {
  const auto& call = operation.call;
  const int rank = mesh_.rank();
  const int world = mesh_.world_size();
  return {operation.fingerprint,
          find(call.input, input_count(call, rank, world) * operation.element),
          find(call.output, output_count(call, rank, world) * operation.element)};
}

void SharedExecutor::meet(const Operation& operation) {
  barrier_.arrive_and_wait(operation.fingerprint, operation.wait);
}

// Says what this rank is about to do and waits for all others, who must be about to do the same.
void SharedExecutor::enter(const Operation& operation, const Announcement& announcement) {
  barrier_.announce(announcement);
  meet(operation);
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (barrier_.agrees(peer)) continue;
    require_same(operation.fingerprint, barrier_.announcement_of(peer).fingerprint, mesh_.rank(),
                 mesh_.describe(peer), mesh_.name());
  }
}

// As enter(), and learns where the others' buffers lie.
void SharedExecutor::enter_with_places(const Operation& operation,
                                       const Announcement& announcement) {
  enter(operation, announcement);
  for (int peer = 0; peer < mesh_.world_size(); ++peer)
    announced_[static_cast<std::size_t>(peer)] = barrier_.announcement_of(peer);
}

// All inputs in one region and all outputs in one region, which nobody has freed.
bool SharedExecutor::all_symmetric(const Operation& operation) const {
  std::int64_t input_region = -2;
  std::int64_t output_region = -2;
  const auto agrees = [](std::int64_t& common, std::int64_t region) {
    if (region == -2) return true;
    if (common == -2) common = region;
    return region >= 0 && region == common;
  };
  for (const auto& said : announced_) {
    if (!agrees(input_region, said.input.region) || !agrees(output_region, said.output.region))
      return false;
  }
  // Only the root of a gather writes its output.
  const bool output_is_shared = operation.call.op != Op::kGather;
  for (const auto& said : announced_) {
    if (!holds(said, input_region) || (output_is_shared && !holds(said, output_region)))
      return false;
  }
  require_inside(operation);
  return operation.call.count > 0;
}

// What a peer says it has must lie inside its block: it is about to be read or written there.
void SharedExecutor::require_inside(const Operation& operation) const {
  const auto& call = operation.call;
  for (int rank = 0; rank < mesh_.world_size(); ++rank) {
    const auto& said = announced_[static_cast<std::size_t>(rank)];
    const auto fits = [&](const SharedPlace& place, std::size_t count) {
      if (place.region < 0) return true;
      const SharedBlocks* blocks = region(place.region);
      const std::size_t bytes = count * operation.element;
      // Of another rank's gather output this rank may have nothing left.
      if (blocks == nullptr) return call.op == Op::kGather && rank != mesh_.rank();
      return bytes <= blocks->bytes() && place.offset <= blocks->bytes() - bytes;
    };
    if (!fits(said.input, input_count(call, rank, mesh_.world_size())) ||
        !fits(said.output, output_count(call, rank, mesh_.world_size()))) {
      fail(ErrorCode::kCorrupt, "rank {}: {} says that its buffers of {} lie outside its memory",
           mesh_.rank(), mesh_.describe(rank), operation.fingerprint.describe());
    }
  }
}

std::byte* SharedExecutor::symmetric(int rank, const SharedPlace& place) const {
  return region(place.region)->of(rank) + place.offset;
}

std::byte* SharedExecutor::staging(int rank) const {
  return blocks_->of(rank) + kControlBytes + (staging_turn_ & 1) * kStagingBytes;
}

void SharedExecutor::run_zero_copy(const Operation& operation) {
  const auto& call = operation.call;
  if (call.op == Op::kBroadcast) {
    broadcast_together(operation);
    return;
  }
  ScheduleSpec spec{call.op,    mesh_.rank(), mesh_.world_size(), call.root,
                    call.count, call.count,   call.count};
  const Schedule& schedule = schedule_for(spec, false);
  const auto copy = copy_for(operation);
  const auto peer_input = [&](int peer, std::size_t offset) {
    return symmetric(peer, announced_[static_cast<std::size_t>(peer)].input) +
           offset * operation.element;
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
  meet(operation);
}

// The root writes its share into every peer's memory while the peers read the rest.
void SharedExecutor::broadcast_together(const Operation& operation) {
  const auto& call = operation.call;
  const auto copy = copy_for(operation);
  const std::size_t bytes = call.count * operation.element;
  const std::size_t pulled = pulled_bytes(bytes, mesh_.world_size());
  if (mesh_.rank() == call.root) {
    copy(call.output, call.input, bytes);
    for (int peer = 0; peer < mesh_.world_size(); ++peer) {
      if (peer == call.root) continue;
      const auto& said = announced_[static_cast<std::size_t>(peer)];
      copy(symmetric(peer, said.output) + pulled, call.input + pulled, bytes - pulled);
    }
  } else {
    const auto& root = announced_[static_cast<std::size_t>(call.root)];
    copy(call.output, symmetric(call.root, root.input), pulled);
  }
  meet(operation);
}

// Past the caches when what the ranks read and write together does not fit there anyway.
SharedExecutor::Copy SharedExecutor::copy_for(const Operation& operation) const {
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
void SharedExecutor::reduce_and_deliver(const Operation& operation, const Schedule& schedule,
                                        const Step& step) {
  const auto& call = operation.call;
  const std::size_t element = operation.element;
  auto& targets = targets_;
  targets.clear();
  if (step.to.space == Space::kOutput) targets.push_back(call.output + step.to.offset * element);
  for (const Step& send : schedule.steps) {
    if (send.kind != Step::Kind::kSend || send.from.space == Space::kInput) continue;
    targets.push_back(symmetric(send.peer, announced_[static_cast<std::size_t>(send.peer)].output) +
                      send.to.offset * element);
  }
  contributions_[static_cast<std::size_t>(mesh_.rank())] =
      call.input + own_offset(schedule, step) * element;
  reduce(contributions_, targets, step.count, call.dtype, call.reduce_op);
}

void SharedExecutor::run_staged(const Operation& operation) {
  const auto& call = operation.call;
  const std::size_t most = piece_count(call);
  for (std::size_t begin = 0; begin < call.count; begin += most) {
    const std::size_t count = std::min(most, call.count - begin);
    const Schedule& schedule = staged_schedule(operation, count);
    ++staging_turn_;
    copy_in(operation, schedule, begin, count);
    meet(operation);
    run_piece(operation, schedule, begin, count);
  }
}

// As run_staged(), with blocks of unequal counts: each has room for the longest piece.
void SharedExecutor::run_staged_blocks(const Operation& operation) {
  const auto& call = operation.call;
  const int rank = mesh_.rank();
  const int world = mesh_.world_size();
  const std::size_t most = piece_count(call);
  const std::size_t length = *std::max_element(call.counts.begin(), call.counts.end());
  const BlockTable blocks = BlockTable::of(call, world);
  ScheduleSpec spec{call.op, rank, world};
  std::size_t begin = 0;
  do {
    ++staging_turn_;
    const BlockTable piece = blocks.piece(call.op, begin, most, false);
    const BlockTable packed = blocks.piece(call.op, begin, most, true);
    const int receivers = gives_blocks(call.op) ? world : 1;
    for (int to = 0; to < receivers; ++to) {
      spec.blocks = &piece;
      const Block source = spec.given(rank, to);
      spec.blocks = &packed;
      copy_bytes(staging(rank) + spec.given(rank, to).offset * operation.element,
                 call.input + source.offset * operation.element, source.count * operation.element);
    }
    meet(operation);
    carry_out(operation, build_direct(spec), staging(rank), call.output);
    begin += most;
  } while (begin < length);
}

// The staging area holds a piece of each input block, one after the other, but for what no other
// rank reads: a rank takes its own from its input.
void SharedExecutor::copy_in(const Operation& operation, const Schedule& schedule,
                             std::size_t begin, std::size_t count) {
  const auto& call = operation.call;
  if (call.input == nullptr) return;
  const std::size_t element = operation.element;
  std::byte* to = staging(mesh_.rank());
  const auto copy = [&](std::size_t block, std::size_t first, std::size_t last) {
    copy_bytes(to + (block * count + first) * element,
               call.input + (block * call.count + begin + first) * element,
               (last - first) * element);
  };
  if (gives_blocks(call.op)) {
    for (std::size_t block = 0; block < operation.blocks_in; ++block) {
      if (block != static_cast<std::size_t>(mesh_.rank())) copy(block, 0, count);
    }
    return;
  }
  const Block own = operation.hands_around() ? own_chunk(schedule) : Block();
  copy(0, 0, own.offset);
  copy(0, own.offset + own.count, count);
}

void SharedExecutor::run_piece(const Operation& operation, const Schedule& schedule,
                               std::size_t begin, std::size_t count) {
  const auto& call = operation.call;
  const auto at = [&](auto* buffer, std::size_t offset) {
    return buffer == nullptr ? nullptr : buffer + offset * operation.element;
  };
  // The blocks of a piece lie `count` apart and those of the input further; of them a rank only
  // takes its own.
  const std::size_t block = gives_blocks(call.op) ? static_cast<std::size_t>(mesh_.rank()) : 0;
  carry_out(operation, schedule, at(call.input, begin + block * (call.count - count)),
            at(call.output, begin));
}

// `input`: where this rank's own part lies at the offset that it has in the staging area.
void SharedExecutor::carry_out(const Operation& operation, const Schedule& schedule,
                               const std::byte* input, std::byte* output) {
  const auto& call = operation.call;
  const std::size_t element = operation.element;
  const bool hands_around = operation.hands_around();
  bool results_are_there = false;
  const auto wait_for_results = [&] {
    if (results_are_there || !hands_around) return;
    results_are_there = true;
    meet(operation);
  };
  for (const Step& step : schedule.steps) {
    const std::size_t bytes = step.count * element;
    if (step.kind == Step::Kind::kCopy) {
      copy_bytes(output + step.to.offset * element, input + step.from.offset * element, bytes);
    } else if (step.kind == Step::Kind::kReduce) {
      const std::size_t own = own_offset(schedule, step) * element;
      contributions_[static_cast<std::size_t>(mesh_.rank())] = input + own;
      targets_.clear();
      if (step.to.space == Space::kOutput) targets_.push_back(output + step.to.offset * element);
      if (hands_around) targets_.push_back(staging(mesh_.rank()) + own);
      reduce(contributions_, targets_, step.count, call.dtype, call.reduce_op);
    } else if (step.kind == Step::Kind::kReceive) {
      const bool is_result = step.from.space != Space::kInput;
      if (is_result) wait_for_results();
      // A result lies in its maker's staging area where the input of that chunk would be: at the
      // offset it has in the output.
      const std::size_t offset = is_result ? step.to.offset : step.from.offset;
      const std::byte* source = staging(step.peer) + offset * element;
      if (step.to.space == Space::kScratch) {
        contributions_[static_cast<std::size_t>(step.peer)] = source;
      } else {
        copy_bytes(output + step.to.offset * element, source, bytes);
      }
    }
  }
  wait_for_results();  // also for ranks that fetch nothing
}

const Schedule& SharedExecutor::staged_schedule(const Operation& operation, std::size_t count) {
  const auto& call = operation.call;
  return schedule_for(
      {call.op, mesh_.rank(), mesh_.world_size(), call.root, count, count, call.count},
      operation.is_one_shot);
}

const Schedule& SharedExecutor::schedule_for(const ScheduleSpec& spec, bool one_shot) {
  const auto key = key_of(spec, one_shot);
  const auto found = schedules_.find(key);
  if (found != schedules_.end() && same(found->second.first, spec)) return found->second.second;
  if (schedules_.size() >= kMaxSchedules) schedules_.clear();
  auto& entry = schedules_[key];
  entry = {spec, one_shot ? build_one_shot_all_reduce(spec) : build_direct(spec)};
  return entry.second;
}

}  // namespace paceline
