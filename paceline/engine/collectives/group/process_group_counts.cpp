// The group's operations with a count for each rank.

#include <algorithm>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"

namespace paceline {

// The counts are kept with a call that may be carried out later.
ProcessGroup::Operation ProcessGroup::counted(const Call& call, const CallOptions& options) {
  struct Held {
    Collective call;
    std::vector<std::size_t> counts;
  };
  const auto held = std::make_shared<Held>();
  held->call = make(call);
  held->counts.assign(call.counts.begin(), call.counts.end());
  held->call.counts = held->counts;
  return [this, held, order = options.order](const WaitOptions& wait) {
    execute(placed(held->call, order, wait), {}, wait);
  };
}

// Every rank's counts, one after the other. A rank gives those that it sends, then those that it
// expects.
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

ProcessGroup::Operation ProcessGroup::exchanged(const Call& asked, const CallOptions& options) {
  require_member("all_to_all_v");
  const std::span send_counts = asked.counts, receive_counts = asked.receive_counts;
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
  call.dtype = asked.output.dtype;
  call.device = asked.output.device;
  call.shape = asked.shape;
  call.shapes = asked.shapes;
  call.counts = mine;
  call.count = saturated_sum(mine);
  require_collective(call, asked.input, asked.output);
  call.counts = {};
  call.input = asked.input.data;
  call.output = asked.output.data;
  std::vector<std::size_t> both(send_counts.begin(), send_counts.end());
  both.insert(both.end(), receive_counts.begin(), receive_counts.end());
  return [this, call, both, order = options.order](const WaitOptions& wait) mutable {
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
    execute(placed(call, order, wait), {}, wait);
  };
}

}  // namespace paceline
