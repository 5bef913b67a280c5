#include "paceline/collectives/backends/paceline/message_executor.h"

#include <algorithm>
#include <cstring>

#include "paceline/collectives/algorithms/direct.h"
#include "paceline/collectives/backends/paceline/slow_wait.h"
#include "paceline/collectives/kernels/reduce.h"
#include "paceline/core/check.h"

namespace paceline {
namespace {

// A piece of a call, over all its blocks.
constexpr std::size_t kPieceBytes = 16 << 20;
// Up to here one round of more bytes is faster than two rounds.
constexpr std::size_t kOneShotBytes = 4 << 10;

MessageHeader make_header(const Fingerprint& fingerprint, std::size_t payload_bytes) {
  MessageHeader header;
  header.payload_bytes = payload_bytes;
  static_assert(sizeof fingerprint == sizeof header.fingerprint);
  std::memcpy(&header.fingerprint, &fingerprint, sizeof fingerprint);
  return header;
}

Fingerprint fingerprint_of(const MessageHeader& header) {
  Fingerprint fingerprint;
  std::memcpy(static_cast<void*>(&fingerprint), &header.fingerprint, sizeof fingerprint);
  return fingerprint;
}

std::size_t blocks_of(Op op, int world_size) {
  const bool blocked = op == Op::kAllGather || op == Op::kGather || op == Op::kScatter ||
                       op == Op::kReduceScatter || op == Op::kAllToAll;
  return blocked ? static_cast<std::size_t>(world_size) : 1;
}

}  // namespace

struct MessageExecutor::Operation {
  const Collective& call;
  const Fingerprint& fingerprint;
  const WaitOptions& wait;
  std::size_t element;
  Deadline::Clock::time_point begin;
};

void MessageExecutor::run(const Collective& call, const Fingerprint& fingerprint,
                          const WaitOptions& wait) {
  const Operation operation{call, fingerprint, wait, size_of(call.dtype), Deadline::Clock::now()};
  const int world = mesh_.world_size();
  const std::size_t most =
      std::max<std::size_t>(1, kPieceBytes / operation.element / blocks_of(call.op, world));
  const bool one_shot =
      call.op == Op::kAllReduce && call.count * operation.element <= kOneShotBytes;
  std::size_t begin = 0;
  do {
    const std::size_t count = std::min(most, call.count - begin);
    const ScheduleSpec spec{call.op, mesh_.rank(), world, call.root, count, call.count, call.count};
    const Schedule schedule = one_shot ? build_one_shot_all_reduce(spec) : build_direct(spec);
    if (begin == 0) greet_silent_peers(operation, schedule);
    run_piece(operation, schedule, begin);
    begin += count;
  } while (begin < call.count);
}

void MessageExecutor::greet_silent_peers(const Operation& operation, const Schedule& schedule) {
  std::vector<bool> sends(static_cast<std::size_t>(mesh_.world_size()));
  std::vector<bool> receives(sends.size());
  for (const Step& step : schedule.steps) {
    if (step.kind == Step::Kind::kSend) sends[static_cast<std::size_t>(step.peer)] = true;
    if (step.kind == Step::Kind::kReceive) receives[static_cast<std::size_t>(step.peer)] = true;
  }
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    if (!sends[static_cast<std::size_t>(peer)]) {
      exchange_.post_send(peer, make_header(operation.fingerprint, 0), {});
    }
    if (!receives[static_cast<std::size_t>(peer)]) exchange_.post_receive(peer, {});
  }
}

void MessageExecutor::run_piece(const Operation& operation, const Schedule& schedule,
                                std::size_t begin) {
  const auto& call = operation.call;
  const std::size_t element = operation.element;
  slot_bytes_ = schedule.slot_count * element;
  const std::size_t needed = slot_bytes_ * static_cast<std::size_t>(mesh_.world_size());
  if (slots_.size() < needed) slots_.resize(needed);
  const auto local = [&](const Place& place) -> std::byte* {
    if (place.space == Space::kSlot) return slot(place.offset);
    auto* base = place.space == Space::kOutput ? call.output : const_cast<std::byte*>(call.input);
    return base + (begin + place.offset) * element;
  };
  for (const Step& step : schedule.steps) {
    const std::size_t bytes = step.count * element;
    switch (step.kind) {
      case Step::Kind::kSend:
        exchange_.post_send(step.peer, make_header(operation.fingerprint, bytes),
                            {local(step.from), bytes});
        break;
      case Step::Kind::kReceive:
        exchange_.post_receive(step.peer, {local(step.to), bytes});
        break;
      case Step::Kind::kCopy:
        if (local(step.to) != local(step.from))
          std::memcpy(local(step.to), local(step.from), bytes);
        break;
      case Step::Kind::kReduce:
        reduce_step(operation, step, begin);
        break;
    }
  }
  run_until_idle(operation);
}

// In place, the result may overwrite what is still being sent, so everything posted so far must be
// through.
void MessageExecutor::reduce_step(const Operation& operation, const Step& step, std::size_t begin) {
  run_until_idle(operation);
  const auto& call = operation.call;
  std::vector<const std::byte*> contributions;
  for (int rank = 0; rank < mesh_.world_size(); ++rank) {
    contributions.push_back(rank == mesh_.rank()
                                ? call.input + (begin + step.from.offset) * operation.element
                                : slot(static_cast<std::size_t>(rank)));
  }
  std::byte* to = step.to.space == Space::kSlot
                      ? slot(step.to.offset)
                      : call.output + (begin + step.to.offset) * operation.element;
  reduce(contributions, to, step.count, call.dtype, call.reduce_op);
}

void MessageExecutor::run_until_idle(const Operation& operation) {
  bool warned = false;
  const auto missing = [&] {
    std::string text;
    for (const int peer : exchange_.waiting_for()) {
      text += (text.empty() ? "" : ", ") + mesh_.describe(peer);
    }
    return (text.empty() ? std::string("a peer that takes no bytes") : text) + " has not come";
  };
  try {
    exchange_.run_until([&] { return exchange_.idle(); },
                        [&](int peer, const MessageHeader& header) {
                          const Fingerprint theirs = fingerprint_of(header);
                          if (theirs == operation.fingerprint) return;
                          require_same(operation.fingerprint, theirs, mesh_.rank(),
                                       mesh_.describe(peer), mesh_.name());
                        },
                        operation.wait.deadline,
                        [&] {
                          if (!warned)
                            warned = warn_of_slow_wait(operation.fingerprint, operation.begin,
                                                       missing());
                        });
    if (!exchange_.idle())
      throw slow_wait_error(mesh_, operation.fingerprint, operation.wait, operation.begin,
                            missing());
  } catch (...) {
    exchange_.clear();
    throw;
  }
}

}  // namespace paceline
