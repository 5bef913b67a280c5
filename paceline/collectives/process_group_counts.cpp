// The group's operations with a count for each rank.

#include <algorithm>
#include <cstdint>

#include "paceline/collectives/process_group.h"
#include "paceline/core/check.h"

namespace paceline {

namespace {

// SIZE_MAX for a saturated_sum that is larger; no call may have that many elements.
std::size_t saturated_sum(std::span<const std::size_t> counts) {
  std::size_t total = 0;
  for (const std::size_t count : counts) {
    if (__builtin_add_overflow(total, count, &total)) return SIZE_MAX;
  }
  return total;
}

}  // namespace

// Holds the counts of a call that may be carried out later.
struct ProcessGroup::Counted {
  Collective call;
  std::vector<std::size_t> counts;
};

ProcessGroup::Operation ProcessGroup::counted(Op op, ConstBuffer input, Buffer output,
                                              std::span<const std::size_t> counts,
                                              ReduceOp reduce_op) {
  require_member(name_of(op));
  check(counts.size() == world_ranks_.size(), "{}: {}: a list of {} counts in a group of {} ranks",
        self_, name_of(op), counts.size(), world_size());
  const auto held = std::make_shared<Counted>();
  held->counts.assign(counts.begin(), counts.end());
  Collective& call = held->call;
  call.op = op;
  call.reduce_op = reduce_op;
  call.dtype = output.dtype;
  call.device = op == Op::kReduceScatterV ? input.device : output.device;
  call.counts = held->counts;
  call.count = saturated_sum(counts);
  call.layout = layout_of(counts);
  require_collective(call, input, output);
  call.input = input_count(call, rank_, world_size()) > 0 ? input.data : nullptr;
  call.output = output_count(call, rank_, world_size()) > 0 ? output.data : nullptr;
  return [this, held](const WaitOptions& wait) { execute(held->call, {}, wait); };
}

void ProcessGroup::all_gather_v(ConstBuffer input, Buffer output,
                                std::span<const std::size_t> counts, const CallOptions& options) {
  run_in_order(counted(Op::kAllGatherV, input, output, counts, {}), options);
}
WorkPtr ProcessGroup::all_gather_v_async(ConstBuffer input, Buffer output,
                                         std::span<const std::size_t> counts,
                                         const CallOptions& options) {
  return enqueue(counted(Op::kAllGatherV, input, output, counts, {}),
                 fmt::format("all_gather_v in group {}", name_), options);
}

void ProcessGroup::reduce_scatter_v(ConstBuffer input, Buffer output,
                                    std::span<const std::size_t> counts, ReduceOp op,
                                    const CallOptions& options) {
  run_in_order(counted(Op::kReduceScatterV, input, output, counts, op), options);
}
WorkPtr ProcessGroup::reduce_scatter_v_async(ConstBuffer input, Buffer output,
                                             std::span<const std::size_t> counts, ReduceOp op,
                                             const CallOptions& options) {
  return enqueue(counted(Op::kReduceScatterV, input, output, counts, op),
                 fmt::format("reduce_scatter_v in group {}", name_), options);
}

// Everybody's counts, one rank after the other. A rank gives those that it sends, then those that
// it expects.
std::vector<std::size_t> ProcessGroup::agree_on_counts(std::span<const std::size_t> mine,
                                                       const WaitOptions& wait) {
  static_assert(sizeof(std::size_t) == size_of(Dtype::kInt64));
  std::vector<std::size_t> all(mine.size() * world_ranks_.size());
  Collective call;
  call.op = Op::kAllGather;
  call.dtype = Dtype::kInt64;
  call.count = mine.size();
  call.layout = layout_of({});  // no all_gather of a user's
  call.input = reinterpret_cast<const std::byte*>(mine.data());
  call.output = reinterpret_cast<std::byte*>(all.data());
  execute(call, {}, wait);
  return all;
}

ProcessGroup::Operation ProcessGroup::exchanged(ConstBuffer input,
                                                std::span<const std::size_t> send_counts,
                                                Buffer output,
                                                std::span<const std::size_t> receive_counts) {
  require_member("all_to_all_v");
  const std::size_t world = world_ranks_.size();
  check(send_counts.size() == world && receive_counts.size() == world,
        "{}: all_to_all_v: lists of {} and {} counts in a group of {} ranks", self_,
        send_counts.size(), receive_counts.size(), world);
  // All that this rank knows by itself: its own row and column.
  std::vector<std::size_t> mine(world * world);
  const auto self = static_cast<std::size_t>(rank_);
  for (std::size_t peer = 0; peer < world; ++peer) mine[peer * world + self] = receive_counts[peer];
  check(send_counts[self] == receive_counts[self],
        "{}: all_to_all_v: gives itself {} elements and expects {}", self_, send_counts[self],
        receive_counts[self]);
  std::copy(send_counts.begin(), send_counts.end(),
            mine.begin() + static_cast<std::ptrdiff_t>(self * world));
  Collective call;
  call.op = Op::kAllToAllV;
  call.dtype = output.dtype;
  call.device = output.device;
  call.counts = mine;
  call.count = saturated_sum(mine);
  require_collective(call, input, output);
  call.counts = {};
  call.input = input.data;
  call.output = output.data;
  std::vector<std::size_t> both(send_counts.begin(), send_counts.end());
  both.insert(both.end(), receive_counts.begin(), receive_counts.end());
  return [this, call, both](const WaitOptions& wait) mutable {
    const std::size_t ranks = world_ranks_.size();
    const auto all = agree_on_counts(both, wait);
    std::vector<std::size_t> counts(ranks * ranks);
    for (std::size_t from = 0; from < ranks; ++from) {
      for (std::size_t to = 0; to < ranks; ++to) {
        const std::size_t given = all[from * 2 * ranks + to];
        const std::size_t wanted = all[to * 2 * ranks + ranks + from];
        counts[from * ranks + to] = given;
        if (given == wanted) continue;
        const Error cause(
            ErrorCode::kInvalid,
            fmt::format("{}: all_to_all_v #{} in group {}: {} sends {} {} elements, which expects "
                        "{}",
                        self_, sequence_, name_, name_of_member(from), name_of_member(to), given,
                        wanted));
        backend_->abort(cause);
        throw cause;
      }
    }
    call.counts = counts;
    call.count = saturated_sum(counts);
    call.layout = layout_of(counts);
    execute(call, {}, wait);
  };
}

void ProcessGroup::all_to_all_v(ConstBuffer input, std::span<const std::size_t> send_counts,
                                Buffer output, std::span<const std::size_t> receive_counts,
                                const CallOptions& options) {
  run_in_order(exchanged(input, send_counts, output, receive_counts), options);
}
WorkPtr ProcessGroup::all_to_all_v_async(ConstBuffer input,
                                         std::span<const std::size_t> send_counts, Buffer output,
                                         std::span<const std::size_t> receive_counts,
                                         const CallOptions& options) {
  return enqueue(exchanged(input, send_counts, output, receive_counts),
                 fmt::format("all_to_all_v in group {}", name_), options);
}

}  // namespace paceline
