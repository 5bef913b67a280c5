#include "paceline/engine/collectives/backends/paceline/message_executor.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/backends/paceline/slow_wait.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

// The most bytes of a piece of a reduction, all its blocks together.
constexpr std::size_t kPieceBytes = 16 << 20;
// Sizes for pieces that overlap. For one piece and one connection per peer: the bytes that a rank
// sends to all other ranks together, and the least that it sends to one of them. Then the number of
// pieces that are under way at a time. A piece is long enough to make system calls cheap, and all
// pieces under way fill a link. A piece is short enough that all connections of a link get an equal
// share of the link, and that the bytes in flight stay in the cache. Only a few pieces are under
// way, so that no connection runs far ahead of another: otherwise, at the end of a call, a link
// that has sent everything would idle while another one is still busy (benchmarks/hosts.md).
constexpr std::size_t kOverlappingBytes = 192 << 10;
constexpr std::size_t kMinMessageBytes = 64 << 10;
constexpr std::size_t kPiecesAhead = 3;
constexpr std::size_t kMaxPlans = 256;
// A reduce works in blocks of this size, and moves bytes through the sockets between two blocks.
constexpr std::size_t kReduceBlockBytes = 128 << 10;
constexpr auto kSendPresenceAfter = 1s;
// A rank that has made no collective call for longer than this may be late: it may find messages
// that other ranks sent before they gave up.
constexpr auto kMayBeLateAfter = 20ms;
// The sequence number of all calls outside the group's numbering.
constexpr std::uint32_t kNotCounted = 0;

MessageHeader make_header(const Fingerprint& fingerprint, std::size_t payload_bytes) {
  MessageHeader header;
  header.payload_bytes = payload_bytes;
  header.fingerprint = std::bit_cast<FingerprintWords>(fingerprint);
  return header;
}

// The number of blocks of `count` elements that a rank's scratch must hold at a time.
std::size_t blocks_of(Op op, int world_size) {
  return reduces(op) && gives_blocks(op) ? static_cast<std::size_t>(world_size) : 1;
}

}  // namespace

struct MessageExecutor::Piece {
  Schedule schedule;
  std::size_t first = 0;         // first element of the piece in the call
  std::size_t scratch_base = 0;  // first element of the piece in the scratch
};

struct MessageExecutor::Operation {
  const Collective& call;
  const Fingerprint& fingerprint;
  const WaitOptions& wait;
  std::size_t element;  // bytes of an element
  std::size_t partial;  // bytes of an element of a partial result
  AwakeClock::time_point begin;
  bool is_shared = false;          // the scratch lies in memory that the host's ranks can read
  std::deque<Piece> pieces;        // pieces that have begun
  const Piece* piece = nullptr;    // the piece whose steps are being carried out
  std::size_t num_begun = 0;       // number of pieces begun so far
  std::size_t scratch_stride = 0;  // distance between pieces, in elements
  SlowWaitSteps steps;
  bool has_sent_presence = false;
};

MessageExecutor::MessageExecutor(Mesh& mesh, Exchange& exchange, const Planner& planner,
                                 HostShare* share)
    : mesh_(mesh),
      exchange_(exchange),
      planner_(planner),
      share_(share),
      last_seen_(static_cast<std::size_t>(mesh.world_size())) {}

void MessageExecutor::run(const Collective& call, const Fingerprint& fingerprint,
                          const WaitOptions& wait) {
  Operation operation{
      call, fingerprint, wait, size_of(call.dtype), partial_size_of(call.dtype), AwakeClock::now()};
  if (operation.begin - last_end_ > kMayBeLateAfter) mesh_.throw_if_failed();
  const int world = mesh_.world_size();
  const Candidate plan = plan_for(call);
  const std::size_t most = piece_count(call, plan.algorithm);
  operation.is_shared = plan.algorithm == Algorithm::kHierarchy && share_ != nullptr;
  const auto blocks = has_counts(call.op) ? BlockTable::of(call, world) : BlockTable();
  const std::size_t length =
      has_counts(call.op) ? *std::max_element(call.counts.begin(), call.counts.end()) : call.count;
  try {
    std::size_t begin = 0;
    do {
      const std::size_t count = std::min(most, length - begin);
      ScheduleSpec spec{call.op, mesh_.rank(), world, call.root, count, call.count, call.count};
      const BlockTable piece = has_counts(call.op) ? blocks.piece(begin, most) : BlockTable();
      spec.blocks = &piece;
      spec.chunk = plan.chunk;
      spec.hosts = &planner_.hosts();
      if (operation.is_shared) share_->begin_piece();
      begin_piece(operation, {build(plan.algorithm, spec), has_counts(call.op) ? 0 : begin});
      begin += count;
    } while (begin < length);
    while (!operation.pieces.empty()) end_piece(operation);
    finish(operation);
    last_end_ = AwakeClock::now();
  } catch (...) {
    exchange_.clear();
    scoreboard_.clear();
    transfers_.clear();
    throw;
  }
}

Candidate MessageExecutor::plan_for(const Collective& call) {
  const std::tuple key(call.op, call.dtype, call.count);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  if (plans_.size() >= kMaxPlans) plans_.clear();
  return plans_[key] = planner_.choose({call.op, call.dtype, call.count});
}

// The number of elements of each block in a piece. Only a call that needs scratch is divided.
std::size_t MessageExecutor::piece_count(const Collective& call, Algorithm algorithm) {
  if (algorithm == Algorithm::kHierarchy) return hierarchy_count(call);
  const std::size_t whole = std::max<std::size_t>(1, call.count);
  if (!reduces(call.op) || needs_whole_call(algorithm, call.op)) return whole;
  const std::size_t blocks = blocks_of(call.op, mesh_.world_size());
  const auto world = static_cast<std::size_t>(mesh_.world_size());
  const std::size_t message =
      std::max(kMinMessageBytes, kOverlappingBytes / std::max<std::size_t>(1, world - 1));
  const std::size_t overlapping = message * world * static_cast<std::size_t>(mesh_.tcp_streams());
  const std::size_t bytes =
      algorithm == Algorithm::kDirect ? std::min(kPieceBytes, overlapping) : kPieceBytes;
  return std::max<std::size_t>(1, bytes / size_of(call.dtype) / blocks);
}

// A count for which every rank's scratch fits into the shared memory of its host; the same on all
// ranks. With equal counts, the search begins at the largest count and goes down in steps of 7/8.
std::size_t MessageExecutor::hierarchy_count(const Collective& call) {
  const std::size_t room = HostShare::kAreaBytes / size_of(call.dtype);
  if (has_counts(call.op)) {
    return hierarchy_block_count(call.op, call.counts, planner_.hosts(), room);
  }
  auto& count = hierarchy_counts_[{call.op, call.dtype, call.root}];
  if (count > 0) return count;
  ScheduleSpec spec{call.op, 0, mesh_.world_size(), call.root};
  spec.hosts = &planner_.hosts();
  const auto fits = [&] {
    for (spec.rank = 0; spec.rank < spec.world_size; ++spec.rank) {
      if (build(Algorithm::kHierarchy, spec).scratch_count > room) return false;
    }
    return true;
  };
  for (spec.count = room; spec.count > 1; spec.count = spec.count * 7 / 8) {
    spec.input_stride = spec.output_stride = spec.count;
    if (fits()) break;
  }
  return count = std::max<std::size_t>(1, spec.count);
}

// Runs the steps that may run ahead, then completes the oldest piece if enough pieces are under
// way. All ranks do this in the same order, so that both ends of each connection agree on the order
// of its messages.
void MessageExecutor::begin_piece(Operation& operation, Piece piece) {
  const std::size_t most = piece.schedule.overlaps ? kPiecesAhead : 1;
  if (operation.num_begun == 0) make_room(operation, piece.schedule, most);
  require_room(operation, piece.schedule);
  piece.scratch_base = operation.num_begun++ % most * operation.scratch_stride;
  operation.pieces.push_back(std::move(piece));
  const Piece& begun = operation.pieces.back();
  operation.piece = &begun;
  for (std::size_t i = 0; i < begun.schedule.num_ahead; ++i) {
    carry_out(operation, begun.schedule.steps[i]);
  }
  if (operation.pieces.size() == most) end_piece(operation);
}

void MessageExecutor::end_piece(Operation& operation) {
  const Piece& oldest = operation.pieces.front();
  operation.piece = &oldest;
  for (std::size_t i = oldest.schedule.num_ahead; i < oldest.schedule.steps.size(); ++i) {
    carry_out(operation, oldest.schedule.steps[i]);
  }
  operation.pieces.pop_front();
}

// Allocates scratch for `pieces` pieces at a time. Requires: `schedule` is that of the first piece,
// and no later piece needs more scratch.
void MessageExecutor::make_room(Operation& operation, const Schedule& schedule,
                                std::size_t pieces) {
  operation.scratch_stride = schedule.scratch_count;
  const std::size_t scratch = schedule.scratch_count * operation.element * pieces;
  const std::size_t partials = schedule.partial_count * operation.partial;
  if (!operation.is_shared && scratch_.bytes() < scratch) {
    scratch_ = Mapping::anonymous(scratch, Pages::kOnTouch);
    if (!populate_pages(scratch_.data(), scratch))
      throw system_error(
          fmt::format("{}: {} bytes for a collective's partial results", mesh_.self(), scratch));
  }
  if (partials_.size() < partials) partials_.resize(partials);
}

void MessageExecutor::require_room(const Operation& operation, const Schedule& schedule) const {
  const std::size_t scratch = schedule.scratch_count * operation.element;
  const std::size_t room =
      operation.is_shared ? HostShare::kAreaBytes : operation.scratch_stride * operation.element;
  if (scratch <= room && schedule.partial_count * operation.partial <= partials_.size()) return;
  fail(ErrorCode::kSystem, "{}: {} needs {} bytes of scratch, but only {} are available",
       mesh_.self(), operation.fingerprint.describe(), scratch, room);
}

void MessageExecutor::carry_out(Operation& operation, const Step& step) {
  switch (step.kind) {
    case Step::Kind::kSend:
      send(operation, step);
      return;
    case Step::Kind::kReceive:
      receive(operation, step);
      return;
    case Step::Kind::kAwait:
      wait_until(operation, [&] { return exchange_.received_all(step.peer); });
      return;
    case Step::Kind::kCopy:
      copy(operation, step);
      return;
    case Step::Kind::kReduce:
      reduce(operation, step);
      return;
    case Step::Kind::kMeet:
      meet(operation);
      return;
  }
}

std::byte* MessageExecutor::address(const Operation& operation, const Place& place, int owner) {
  const auto& call = operation.call;
  switch (place.space) {
    case Space::kInput:
      return const_cast<std::byte*>(call.input) +
             (operation.piece->first + place.offset) * operation.element;
    case Space::kOutput:
      return call.output + (operation.piece->first + place.offset) * operation.element;
    case Space::kScratch:
      if (operation.is_shared) {
        return share_->area(owner < 0 ? mesh_.rank() : owner) + place.offset * operation.element;
      }
      return scratch_.data() + (operation.piece->scratch_base + place.offset) * operation.element;
    case Space::kPartial:
      return partials_.data() + place.offset * operation.partial;
  }
  return nullptr;
}

Scoreboard::Bytes MessageExecutor::bytes_of(const Operation& operation, const Place& place,
                                            std::size_t count, int owner) {
  const std::size_t size = place.space == Space::kPartial ? operation.partial : operation.element;
  const auto begin = reinterpret_cast<std::uintptr_t>(address(operation, place, owner));
  return {begin, begin + count * size};
}

void MessageExecutor::send(Operation& operation, const Step& step) {
  if (step.count == 0) {
    exchange_.post_send(step.peer, make_header(operation.fingerprint, 0), {});
    return;
  }
  const auto bytes = bytes_of(operation, step.from, step.count, step.owner);
  wait_until(operation, [&] { return scoreboard_.may_read(bytes); });
  const std::size_t size = bytes.end - bytes.begin;
  const auto number = exchange_.post_send(step.peer, make_header(operation.fingerprint, size),
                                          {reinterpret_cast<const std::byte*>(bytes.begin), size});
  scoreboard_.begin(transfers_.size(), bytes, false);
  transfers_.push_back({step.peer, number, true});
}

void MessageExecutor::receive(Operation& operation, const Step& step) {
  if (step.count == 0) {
    exchange_.post_receive(step.peer, {});
    return;
  }
  const auto bytes = bytes_of(operation, step.to, step.count);
  wait_until(operation, [&] { return scoreboard_.may_write(bytes); });
  const auto number = exchange_.post_receive(
      step.peer, {reinterpret_cast<std::byte*>(bytes.begin), bytes.end - bytes.begin});
  scoreboard_.begin(transfers_.size(), bytes, true);
  transfers_.push_back({step.peer, number, false});
}

void MessageExecutor::copy(Operation& operation, const Step& step) {
  const auto from = bytes_of(operation, step.from, step.count, step.owner);
  const auto to = bytes_of(operation, step.to, step.count);
  if (from.begin == to.begin) return;
  wait_until(operation, [&] { return scoreboard_.may_read(from) && scoreboard_.may_write(to); });
  std::memcpy(reinterpret_cast<void*>(to.begin), reinterpret_cast<const void*>(from.begin),
              to.end - to.begin);
}

void MessageExecutor::meet(Operation& operation) {
  exchange_.pump(header_check(operation));
  wait_until(operation, [&] { return scoreboard_.empty(); });
  if (share_ == nullptr) return;
  share_->meet(operation.fingerprint, operation.wait, [&] {
    send_presence(operation);
    exchange_.pump(header_check(operation));
  });
}

// Reduces block by block: the reduce can begin before everything has arrived, and sends continue.
void MessageExecutor::reduce(Operation& operation, const Step& step) {
  const auto operands =
      std::span(operation.piece->schedule.operands).subspan(step.first_operand, step.num_operands);
  const bool is_partial = step.to.space == Space::kPartial;
  const std::size_t most = kReduceBlockBytes / operation.element;
  for (std::size_t begin = 0; begin < step.count; begin += most) {
    const std::size_t count = std::min(most, step.count - begin);
    const auto at = [&](const Place& place) { return Place{place.space, place.offset + begin}; };
    const auto to = bytes_of(operation, at(step.to), count);
    wait_until(operation, [&] {
      return scoreboard_.may_write(to) &&
             std::all_of(operands.begin(), operands.end(), [&](const Operand& operand) {
               return scoreboard_.may_read(
                   bytes_of(operation, at(operand.place), count, operand.owner));
             });
    });
    sources_.clear();
    for (const Operand& operand : operands) {
      sources_.push_back({address(operation, at(operand.place), operand.owner), operand.num_ranks,
                          operand.place.space == Space::kPartial});
    }
    reduce_partials(sources_, address(operation, at(step.to)), count, operation.call.dtype,
                    operation.call.reduce_op,
                    is_partial ? ReduceResult::kPartial : ReduceResult::kFinal,
                    divisor_of(operation.call, mesh_.world_size()));
    exchange_.pump(header_check(operation));
  }
}

template <class Ready>
void MessageExecutor::wait_until(Operation& operation, Ready ready) {
  const auto done = [&] {
    scoreboard_.update([&](std::uint64_t id) {
      const Transfer& transfer = transfers_[id];
      return transfer.is_send ? exchange_.sent_bytes(transfer.peer, transfer.number)
                              : exchange_.received_bytes(transfer.peer, transfer.number);
    });
    return ready();
  };
  if (done()) return;
  const bool asks = operation.fingerprint.sequence != kNotCounted;
  const auto run_until = [&](Deadline deadline) {
    exchange_.run_until(done, header_check(operation), deadline, [&] {
      send_presence(operation);
      answer(operation);
      warn_of_slow_wait(mesh_, operation.fingerprint, operation.begin, asks, operation.steps,
                        [&] { return missing(operation); });
    });
    return done();
  };
  if (run_until(operation.wait.deadline)) return;
  if (asks) mesh_.ask_peers();
  if (asks && run_until(Deadline::after(kAnswerLimit))) return;
  throw slow_wait_error(mesh_, operation.fingerprint, operation.wait, operation.begin,
                        missing(operation));
}

void MessageExecutor::finish(Operation& operation) {
  wait_until(operation, [&] { return exchange_.idle(); });
  scoreboard_.clear();
  transfers_.clear();
}

// An expected message must belong to the same call. An unexpected message may belong to a call with
// another number, but not to a different call with the same number, unless that number is
// kNotCounted.
Exchange::CheckHeader MessageExecutor::header_check(const Operation& operation) {
  return [this, &operation](int peer, const MessageHeader& header, bool expected) {
    const Fingerprint& mine = operation.fingerprint;
    const Fingerprint theirs = std::bit_cast<Fingerprint>(header.fingerprint);
    auto& seen = last_seen_[static_cast<std::size_t>(peer)];
    if (theirs.group == mine.group) seen = std::max(seen, theirs.sequence);
    if (theirs == mine) return;
    const bool is_of_another = theirs.sequence != mine.sequence || mine.sequence == kNotCounted;
    if (!expected && theirs.group == mine.group && is_of_another) return;
    require_same(mine, theirs, mesh_.self(), {mesh_.describe(peer), mesh_.in_world(peer)},
                 mesh_.name());
  };
}

// Sends presences well before the deadline, so that no rank's timeout error names a rank that has
// arrived.
void MessageExecutor::send_presence(Operation& operation) {
  if (operation.has_sent_presence) return;
  const auto waited = AwakeClock::now() - operation.begin;
  const auto limit = operation.wait.deadline.moment() - Deadline::Clock::now() + waited;
  if (waited < std::min<AwakeClock::duration>(kSendPresenceAfter, limit / 4)) return;
  operation.has_sent_presence = true;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer != mesh_.rank()) {
      exchange_.post_presence(peer, make_header(operation.fingerprint, 0));
    }
  }
}

void MessageExecutor::answer(const Operation& operation) {
  if (mesh_.is_asked()) mesh_.answer(awaited(operation));
}

std::vector<Awaited> MessageExecutor::awaited(const Operation& operation) const {
  std::vector<Awaited> ranks;
  for (const int peer : exchange_.waiting_for()) {
    const auto seen = last_seen_[static_cast<std::size_t>(peer)];
    ranks.push_back({peer, seen >= operation.fingerprint.sequence});
  }
  return ranks;
}

Missing MessageExecutor::missing(const Operation& operation) const {
  const auto ranks = awaited(operation);
  const auto suspects = find_suspects(mesh_, ranks, operation.fingerprint.sequence != kNotCounted);
  return {suspects.empty() ? describe_waiting(mesh_, ranks) : describe_suspects(mesh_, suspects),
          blamed(ranks, suspects)};
}

}  // namespace paceline
