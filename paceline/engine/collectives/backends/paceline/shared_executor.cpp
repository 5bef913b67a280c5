#include "paceline/engine/collectives/backends/paceline/shared_executor.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/collectives/algorithms/in_shared_memory.h"
#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/system/simd.h"

namespace paceline {

namespace {

// Up to this size, one phase and a copy are cheaper than the two phases of a call in place.
constexpr std::size_t kTinyBytes = 4 << 10;
constexpr std::size_t kTinyBytesWhenSharingCores = 32 << 10;
// Up to this size, the data that peers read is copied before the ranks meet, which saves a phase.
constexpr std::size_t kSmallBytes = 16 << 10;
// In a staged all_reduce up to this size, and in every tiny one, each rank reduces everything
// itself, which saves a phase. With two ranks it does so at every size: neither rank reads more of
// the other's memory than it would otherwise.
constexpr std::size_t kOneShotBytes = 8 << 10;

std::size_t most_tiny(const SharedTerms& terms) {
  return terms.shares_cores ? kTinyBytesWhenSharingCores : kTinyBytes;
}

}  // namespace

std::size_t staged_piece_count(Op op, Dtype dtype, int world_size) {
  const auto blocks = gives_blocks(op) ? static_cast<std::size_t>(world_size) : 1;
  return std::max<std::size_t>(1, GroupShare::kAreaBytes / size_of(dtype) / blocks);
}

SharedRoute choose_route(const SharedTerms& terms, const PlanRequest& request) {
  const std::size_t bytes = request.count * size_of(request.dtype);
  SharedRoute route;
  route.is_one_shot = request.op == Op::kAllReduce &&
                      (terms.world_size == 2 || bytes <= std::max(kOneShotBytes, most_tiny(terms)));
  // The longest block decides how a call with unequal counts is divided, and `count` does not show
  // its length.
  const bool is_one_piece =
      !has_counts(request.op) &&
      request.count <= staged_piece_count(request.op, request.dtype, terms.world_size);
  if (is_one_piece && bytes <= most_tiny(terms)) {
    route.method = SharedRoute::Method::kTiny;
  } else if (is_one_piece && bytes <= kSmallBytes) {
    route.method = SharedRoute::Method::kSmall;
  } else {
    route.method = SharedRoute::Method::kLarge;
  }
  return route;
}

std::string explain_route(const SharedTerms& terms, const PlanRequest& request) {
  const SharedRoute route = choose_route(terms, request);
  const char* const staged = route.is_one_shot ? "one_shot" : "direct";
  std::string how;
  if (route.method == SharedRoute::Method::kTiny) {
    how =
        fmt::format("{}; by way of the staging area, up to {} KiB", staged, most_tiny(terms) >> 10);
  } else {
    how = fmt::format(
        "direct; read and written in place when all buffers lie in symmetric memory, otherwise "
        "{}by way of a staging area of {} KiB",
        route.is_one_shot ? "one_shot " : "", GroupShare::kAreaBytes >> 10);
  }
  return fmt::format("{} among {} in shared memory: {}\n", describe(request),
                     counted(terms.world_size, "rank"), how);
}

SharedPlan SharedPlans::make(const Collective& call) const {
  SharedPlan plan;
  plan.route = choose_route(terms_, {call.op, call.dtype, call.count});
  if (plan.route.method != SharedRoute::Method::kLarge) {
    const auto build = plan.route.is_one_shot ? build_staged_one_shot : build_staged;
    plan.staged =
        build({call.op, rank_, terms_.world_size, call.root, call.count, call.count, call.count});
  }
  return plan;
}

bool ScheduleKey::operator==(const ScheduleKey& other) const {
  const ScheduleSpec& theirs = other.spec;
  return build == other.build && spec.op == theirs.op && spec.root == theirs.root &&
         spec.count == theirs.count && spec.input_stride == theirs.input_stride &&
         spec.output_stride == theirs.output_stride && spec.chunk == theirs.chunk;
}

// The products are independent of each other, so that the processor computes them at the same time:
// the time of this lookup counts in a small call.
std::size_t ScheduleKey::place() const {
  const auto root_and_op =
      (static_cast<std::uint64_t>(spec.root) << 8) | static_cast<std::uint64_t>(spec.op);
  const std::uint64_t sum = spec.count * 0x9e3779b97f4a7c15u +
                            spec.input_stride * 0xc2b2ae3d27d4eb4fu +
                            root_and_op * 0x165667b19e3779f9u +
                            reinterpret_cast<std::uintptr_t>(build) * 0x27d4eb2f165667c5u;
  return (sum ^ (sum >> 29)) * 0x9e3779b97f4a7c15u >> 56;
}

namespace {

// A range with several destinations is copied in parts of this size, which stay in a core's cache
// from one destination to the next.
constexpr std::size_t kFanOutBytes = 64 << 10;

}  // namespace

SharedRunner::SharedRunner(const Mesh& mesh, GroupShare& share, const SymmetricRegions& regions)
    : rank_(mesh.rank()), share_(share), regions_(regions) {
  for (const unsigned turn : {0u, 1u}) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      bases_of_turns_[turn].push_back({nullptr, nullptr, share.area(rank, turn)});
    }
  }
}

void SharedRunner::find_bases(const SharedPiece& piece) {
  const auto& call = piece.operation.call;
  element_ = piece.operation.element;
  const auto begin_in = [&](std::byte* buffer) {
    return buffer == nullptr ? nullptr : buffer + piece.begin * element_;
  };
  bases_ = &bases_of_turns_[piece.turn & 1];
  if (piece.is_in_place) {
    for (std::size_t rank = 0; rank < bases_->size(); ++rank) {
      const int owner = static_cast<int>(rank);
      auto& [input, output, scratch] = (*bases_)[rank];
      const Announcement& announcement = share_.announced(owner);
      input = begin_in(regions_.at(owner, announcement.input));
      output = begin_in(regions_.at(owner, announcement.output));
    }
  }
  auto& [input, output, scratch] = (*bases_)[static_cast<std::size_t>(rank_)];
  input = begin_in(const_cast<std::byte*>(call.input));
  output = begin_in(call.output);
}

void SharedRunner::prepare(const SharedPiece& piece) {
  find_bases(piece);
  run_from(piece, 0);
}

void SharedRunner::run(const SharedPiece& piece) {
  find_bases(piece);
  meet_and_run_from(piece, run_from(piece, 0));
}

void SharedRunner::finish(const SharedPiece& piece) {
  meet_and_run_from(piece, run_from(piece, piece.schedule.first_meeting + 1));
}

// Meets the other ranks at `step` and runs the steps that follow, until the end. `step` is a
// meeting, or the end.
void SharedRunner::meet_and_run_from(const SharedPiece& piece, std::size_t step) {
  while (step < piece.schedule.steps.size()) {
    share_.meet(piece.operation);
    step = run_from(piece, step + 1);
  }
}

// Runs steps until the next meeting or the end; returns the index at which it stopped.
std::size_t SharedRunner::run_from(const SharedPiece& piece, std::size_t step) {
  const auto& steps = piece.schedule.steps;
  for (; step < steps.size() && steps[step].kind != Step::Kind::kMeet; ++step) {
    if (steps[step].kind == Step::Kind::kReduce) {
      reduce(piece, steps[step]);
    } else {
      copy(piece, steps[step]);
    }
  }
  return step;
}

void SharedRunner::find_targets(const SharedPiece& piece, const Step& step) {
  if (step.num_targets == 0) {
    targets_.resize(1);
    targets_[0] = address(step.to, -1);
    return;
  }
  targets_.resize(step.num_targets);
  for (std::size_t i = 0; i < step.num_targets; ++i) {
    const Target& target = piece.schedule.targets[step.first_target + i];
    targets_[i] = address(target.place, target.owner);
  }
}

void SharedRunner::copy(const SharedPiece& piece, const Step& step) {
  const std::size_t bytes = step.count * piece.operation.element;
  const std::byte* const from = address(step.from, step.owner);
  if (step.num_targets == 0) return piece.copy(address(step.to, -1), from, bytes);
  find_targets(piece, step);
  const std::size_t most = targets_.size() > 1 ? kFanOutBytes : bytes;
  for (std::size_t begin = 0; begin < bytes; begin += most) {
    for (std::byte* const to : targets_) {
      piece.copy(to + begin, from + begin, std::min(most, bytes - begin));
    }
  }
}

void SharedRunner::reduce(const SharedPiece& piece, const Step& step) {
  const auto& call = piece.operation.call;
  sources_.resize(step.num_operands);
  for (std::size_t i = 0; i < step.num_operands; ++i) {
    const Operand& operand = piece.schedule.operands[step.first_operand + i];
    sources_[i] = {address(operand.place, operand.owner), operand.num_ranks};
  }
  find_targets(piece, step);
  reduce_partials(sources_, targets_, step.count, call.dtype, call.reduce_op, ReduceResult::kFinal,
                  divisor_of(call, static_cast<int>(bases_->size())));
}

namespace {

// In a broadcast in place of this size or more, the root also writes a part of every other rank's
// buffer.
constexpr std::size_t kMinPushedBytes = 64 << 10;

bool is_shared(const Announcement& announcement) {
  return announcement.input.region != -1 && announcement.output.region != -1;
}

// Like copy_bytes(), for ranges that are too large for the caches.
void copy_large_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from) copy_past_caches(to, from, bytes);
}

// How many elements each peer reads in a broadcast in place: everything if the broadcast is small,
// otherwise whole cache lines, so that all ranks have about the same amount of work.
std::size_t pulled_count(std::size_t count, std::size_t element, int world) {
  if (count * element < kMinPushedBytes) return count;
  const std::size_t line = 64 / element;
  const auto ranks = static_cast<std::size_t>(world);
  return count / ranks * (ranks - 1) / line * line;
}

}  // namespace

SharedExecutor::SharedExecutor(Mesh& mesh, GroupShare& share,
                               std::shared_ptr<SymmetricRegistry> registry)
    : rank_(mesh.rank()),
      terms_{mesh.world_size(), mesh.oversubscribed()},
      share_(share),
      regions_(mesh, std::move(registry)),
      plans_(terms_, rank_),
      runner_(mesh, share_, regions_) {}

void SharedExecutor::run(const Collective& call, const Fingerprint& fingerprint,
                         const WaitOptions& wait) {
  const SharedPlan& plan = plans_.find(call);
  const SharedOperation operation{call, fingerprint, wait, size_of(call.dtype)};
  if (call.op == Op::kVisit) return enter_visit(operation);
  switch (plan.route.method) {
    case SharedRoute::Method::kTiny:
      return run_tiny(operation, plan.staged);
    case SharedRoute::Method::kSmall:
      return run_small(operation, plan);
    case SharedRoute::Method::kLarge:
      return run_large(operation, plan.route);
  }
}

// Finds the ranks' buffers. The group then runs the body of the visit, after which all ranks meet
// again.
void SharedExecutor::enter_visit(const SharedOperation& operation) {
  share_.enter_with_places(operation, regions_.announcement_for(operation));
  visited_.clear();
  if (!regions_.hold_all(operation, share_.announced())) return;
  for (int rank = 0; rank < terms_.world_size; ++rank) {
    visited_.push_back(regions_.at(rank, share_.announced(rank).output));
  }
}

// Always staged: does not check whether the buffers are symmetric.
void SharedExecutor::run_tiny(const SharedOperation& operation, const Schedule& schedule) {
  const SharedPiece piece{operation, schedule, share_.begin_piece()};
  runner_.prepare(piece);
  share_.enter(operation, {operation.fingerprint, {}, {}});
  runner_.finish(piece);
}

// A rank whose buffers are not symmetric copies before it knows about the other ranks' buffers.
// That saves a phase if no rank's buffers are symmetric.
void SharedExecutor::run_small(const SharedOperation& operation, const SharedPlan& plan) {
  const Announcement announcement = regions_.announcement_for(operation);
  const SharedPiece piece{operation, plan.staged, share_.begin_piece()};
  if (!is_shared(announcement)) runner_.prepare(piece);
  share_.enter_with_places(operation, announcement);
  const auto announced = share_.announced();
  if (regions_.hold_all(operation, announced)) return run_in_place(operation);
  if (std::any_of(announced.begin(), announced.end(), is_shared)) {
    if (is_shared(announcement)) runner_.prepare(piece);
    share_.meet(operation);
  }
  runner_.finish(piece);
}

void SharedExecutor::run_large(const SharedOperation& operation, const SharedRoute& route) {
  share_.enter_with_places(operation, regions_.announcement_for(operation));
  if (regions_.hold_all(operation, share_.announced())) return run_in_place(operation);
  run_staged(operation, route);
}

void SharedExecutor::run_in_place(const SharedOperation& operation) {
  const auto& call = operation.call;
  if (has_counts(call.op)) {
    const BlockTable blocks = BlockTable::of(call, terms_.world_size);
    ScheduleSpec spec = spec_of(call, call.count);
    spec.blocks = &blocks;
    runner_.run({operation, build_in_place(spec), 0, 0, true, copy_for(operation)});
  } else {
    ScheduleSpec spec = spec_of(call, call.count);
    spec.chunk = pulled_count(call.count, operation.element, terms_.world_size);
    const Schedule& schedule = schedules_.find(spec, build_in_place);
    runner_.run({operation, schedule, 0, 0, true, copy_for(operation)});
  }
  share_.meet(operation);
}

void SharedExecutor::run_staged(const SharedOperation& operation, const SharedRoute& route) {
  const auto& call = operation.call;
  const std::size_t most = staged_piece_count(call.op, call.dtype, terms_.world_size);
  if (!has_counts(call.op)) {
    const auto build = route.is_one_shot ? build_staged_one_shot : build_staged;
    for (std::size_t begin = 0; begin < call.count; begin += most) {
      const ScheduleSpec spec = spec_of(call, std::min(most, call.count - begin));
      runner_.run({operation, schedules_.find(spec, build), share_.begin_piece(), begin});
    }
    return;
  }
  const std::size_t longest = *std::max_element(call.counts.begin(), call.counts.end());
  const BlockTable blocks = BlockTable::of(call, terms_.world_size);
  std::size_t begin = 0;
  do {
    const BlockTable piece = blocks.piece(begin, most);
    ScheduleSpec spec = spec_of(call, most);
    spec.blocks = &piece;
    runner_.run({operation, build_staged(spec), share_.begin_piece()});
    begin += most;
  } while (begin < longest);
}

// `count`: the elements of the piece or, if the call has blocks, of each block of the piece.
ScheduleSpec SharedExecutor::spec_of(const Collective& call, std::size_t count) const {
  return {call.op, rank_, terms_.world_size, call.root, count, call.count, call.count};
}

// Chooses copies that bypass the caches if the memory that the ranks read and write together does
// not fit into them anyway.
SharedPiece::Copy SharedExecutor::copy_for(const SharedOperation& operation) const {
  std::size_t elements = 0;
  for (int rank = 0; rank < terms_.world_size; ++rank) {
    elements += input_count(operation.call, rank, terms_.world_size) +
                output_count(operation.call, rank, terms_.world_size);
  }
  const std::size_t cache = last_level_cache_bytes();
  return elements * operation.element > cache + cache / 4 ? copy_large_bytes : copy_bytes;
}

}  // namespace paceline
