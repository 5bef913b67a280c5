#include "apps/bench/contestant/own_contestant.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/collectives/group/engine_group.h"

#include "apps/bench/contestant/pattern.h"
#include "apps/bench/report.h"

namespace paceline::bench {

namespace {

constexpr int kWarmUpCalls = 2;

std::shared_ptr<ProcessGroup> not_owned(ProcessGroup& group) {
  return {std::shared_ptr<void>(), &group};
}

}  // namespace

std::string OwnContestant::version() const {
  if (group_->world_size() == 1) return "Paceline, a rank alone: it only copies";
  return fmt::format("Paceline, {}{}", group_->transport(), how_);
}

std::string OwnContestant::lacks(Op op, Dtype dtype, Placement) const {
  if (op == Op::kBarrier || group_->supports(op, dtype)) return "";
  return fmt::format("has no {} of {}", paceline::name_of(op), paceline::name_of(dtype));
}

Memory OwnContestant::allocate(MemoryKind kind, std::size_t bytes) {
  if (kind == MemoryKind::kOrdinary) return ordinary_memory(bytes);
  const SymmetricBuffer buffer = group_->reserve_symmetric(bytes);
  return {buffer.data(), buffer.owner()};
}

void OwnContestant::run(const Collective& call) {
  EngineGroup& group = engine(*group_);
  const int rank = group.rank(), size = group.world_size();
  Call made{.op = call.op, .root = call.root};
  made.input = {call.input, elements_in(call, rank, size), call.dtype};
  made.output = {call.output, elements_out(call, rank, size), call.dtype};
  if (call.op == Op::kSend) {
    const WorkPtr sent = group.isend(made.input, (rank + 1) % size);
    group.recv(made.output, (rank + size - 1) % size);
    return sent->wait();
  }
  // broadcast and reduce have one buffer.
  if (call.op == Op::kBroadcast) made.input = made.output;
  if (call.op == Op::kReduce) {
    made.output = {const_cast<std::byte*>(call.input), call.count, call.dtype};
  }
  // For all_to_all_v: the counts that this rank sends to each rank; it receives the same, because
  // all counts are equal.
  made.counts = made.receive_counts =
      call.counts.first(std::min(call.counts.size(), static_cast<std::size_t>(size)));
  group.run(made);
}

void OwnContestant::run_coalesced(const Collective& call, std::size_t parts) {
  const std::size_t count = call.count / parts;
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < parts; ++i)
    buffers.emplace_back(call.output + i * count * size_of(call.dtype), count, call.dtype);
  group_->all_reduce_coalesced(buffers);
}

double seconds_of(ProcessGroup& group, Op op, Dtype dtype, std::size_t bytes, int calls) {
  OwnContestant contestant(not_owned(group));
  const int rank = group.rank(), world = group.world_size();
  Collective call;
  call.op = op;
  call.dtype = dtype;
  call.count = count_for(op, dtype, world, bytes);
  const std::size_t in = input_count(call, rank, world) * size_of(dtype);
  const std::size_t out = output_count(call, rank, world) * size_of(dtype);
  const Memory input = ordinary_memory(std::max(in, out)), output = ordinary_memory(out);
  const bool is_in_place =
      op != Op::kBarrier && op != Op::kAllGather && has_form(op, Placement::kInPlace);
  call.input = input.data;
  call.output = is_in_place ? input.data : output.data;
  const Pattern pattern(dtype, world);
  std::vector<double> seconds;
  for (int number = -kWarmUpCalls; number < calls; ++number) {
    const int turn = number + kWarmUpCalls;
    pattern.write({input.data, in}, rank, static_cast<std::uint64_t>(turn));
    group.barrier();
    const auto begin = std::chrono::steady_clock::now();
    contestant.run(call);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    if (number >= 0) seconds.push_back(time.count());
  }
  group.all_reduce(std::span(seconds), ReduceOp::kMax);
  return median(seconds);
}

}  // namespace paceline::bench
