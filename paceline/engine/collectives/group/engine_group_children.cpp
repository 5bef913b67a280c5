// How a group makes other groups: new_group() and split().

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <fmt/ranges.h>
#include <xxhash.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/rendezvous/hosted_store.h"

namespace paceline {

namespace {

std::vector<int> world_numbers_of(const ProcessGroup& group, const std::vector<int>& ranks) {
  std::vector<int> numbers;
  for (const int rank : ranks) {
    numbers.push_back(group.world_ranks()[static_cast<std::size_t>(rank)]);
  }
  return numbers;
}

}  // namespace

std::shared_ptr<ProcessGroup> EngineGroup::new_group(const std::vector<int>& ranks,
                                                     const std::optional<GroupOptions>& options) {
  require_member("new_group");
  check(!ranks.empty(), "{}: new_group: no ranks", self_);
  check(std::set<int>(ranks.begin(), ranks.end()).size() == ranks.size(),
        "{}: new_group: a rank is named twice", self_);
  for (const int rank : ranks) {
    check(rank >= 0 && rank < world_size(),
          "{}: new_group: {} is not a rank of group {}, which has {} ranks", self_, rank, name_,
          world_size());
  }
  const GroupOptions child = options_of_child(options);
  Rendezvous meeting = rendezvous_;
  std::string name;
  run_in_order(
      [&](const WaitOptions& wait) {
        require_same_members(ranks, wait);
        meeting = meeting_of_children(Op::kNewGroup, wait);
        name = fmt::format("{}.{}", name_, num_children_++);
      },
      {.timeout = child.timeout});
  return form(meeting, name, ranks, child);
}

std::shared_ptr<ProcessGroup> EngineGroup::split(int color, int key,
                                                 const std::optional<GroupOptions>& options,
                                                 std::string_view label) {
  require_member("split");
  const GroupOptions child = options_of_child(options);
  const std::array<std::int64_t, 2> mine = {color, key};
  std::vector<std::int64_t> all;
  Rendezvous meeting = rendezvous_;
  std::string name;  // the group's name, without the color
  run_in_order(
      [&](const WaitOptions& wait) {
        all = gather_for(Op::kSplit, mine, wait);
        meeting = meeting_of_children(Op::kSplit, wait);
        name = fmt::format("{}.{}.{}", name_, num_children_++, label);
      },
      {.timeout = child.timeout});
  std::map<std::int64_t, std::vector<int>> groups;
  for (int rank = 0; rank < world_size(); ++rank) {
    groups[all[2 * static_cast<std::size_t>(rank)]].push_back(rank);
  }
  std::vector<int>& ranks = groups[color];
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all[2 * static_cast<std::size_t>(a) + 1] < all[2 * static_cast<std::size_t>(b) + 1];
  });
  if (meeting.hosted) {
    for (const auto& [other, members] : groups) {
      if (other >= 0)
        meeting.hosted->begin(name + std::to_string(other), world_numbers_of(*this, members));
    }
  }
  return form(meeting, name + std::to_string(color), color < 0 ? std::vector<int>() : ranks, child);
}

// Gathers `mine` of all ranks, in rank order, by a collective that appears as `op`. So a rank that
// makes a different call, leaves or dies is detected before a group forms.
std::vector<std::int64_t> EngineGroup::gather_for(Op op, std::span<const std::int64_t> mine,
                                                  const WaitOptions& wait) {
  std::vector<std::int64_t> all(mine.size() * world_ranks_.size());
  Collective call;
  call.op = Op::kAllGather;
  call.part_of = op;
  call.dtype = Dtype::kInt64;
  call.count = mine.size();
  call.input = reinterpret_cast<const std::byte*>(mine.data());
  call.output = reinterpret_cast<std::byte*>(all.data());
  execute(call, {}, wait);
  return all;
}

// Compares hashes first; the lists themselves travel only if the hashes differ. All ranks reach the
// same verdict, so the group can continue.
void EngineGroup::require_same_members(const std::vector<int>& ranks, const WaitOptions& wait) {
  const auto world = static_cast<std::size_t>(world_size());
  const auto hash = XXH3_64bits(ranks.data(), ranks.size() * sizeof ranks[0]);
  const std::array<std::int64_t, 2> mine = {static_cast<std::int64_t>(hash),
                                            static_cast<std::int64_t>(ranks.size())};
  const auto words = gather_for(Op::kNewGroup, mine, wait);
  const std::uint32_t number = sequence_;
  bool is_same = true;
  for (std::size_t i = 0; i < words.size(); ++i) is_same &= words[i] == mine[i % mine.size()];
  if (is_same) return;
  constexpr std::int64_t kNone = -1;
  std::vector<std::int64_t> padded(world, kNone);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    padded[i] = world_ranks_[static_cast<std::size_t>(ranks[i])];
  }
  const auto lists = gather_for(Op::kNewGroup, padded, wait);
  const auto list_of = [&](std::size_t rank) {
    const auto begin = lists.begin() + static_cast<std::ptrdiff_t>(rank * world);
    return std::vector<std::int64_t>(begin, std::find(begin, begin + world_size(), kNone));
  };
  const auto own = list_of(static_cast<std::size_t>(rank_));
  for (std::size_t rank = 0; rank < world; ++rank) {
    const auto theirs = list_of(rank);
    if (theirs == own) continue;
    fail(ErrorCode::kInvalid, {.ranks = {world_ranks_[rank]}},
         "{}: new_group #{} in group {} does not match: this rank means ranks {} of the world, {} "
         "means {}; all ranks must make the same groups in the same order",
         self_, number, name_, fmt::join(own, ", "),
         rank_name(static_cast<int>(rank), world_ranks_[rank]), fmt::join(theirs, ", "));
  }
}

GroupOptions EngineGroup::options_of_child(const std::optional<GroupOptions>& options) const {
  GroupOptions child = options.value_or(options_);
  if (!child.timeout) child.timeout = options_.timeout;
  if (!child.recorder) child.recorder = options_.recorder;
  if (!child.timeline) child.timeline = options_.timeline;
  try {
    require_possible(child);
  } catch (const Error& error) {
    throw reported_by(self_, fmt::format("options of a subgroup of group {}", name_), error);
  }
  return child;
}

// Returns the rendezvous at which the new groups form. The world's store is not used if the rank
// that hosts the store is not in this group, because that rank may leave while the groups form.
Rendezvous EngineGroup::meeting_of_children(Op op, const WaitOptions& wait) {
  const auto& hosted = rendezvous_.hosted;
  const bool stays = !hosted || std::find(world_ranks_.begin(), world_ranks_.end(),
                                          hosted->host()) != world_ranks_.end();
  if (stays) return rendezvous_;
  if (!own_meeting_) own_meeting_ = host_children(op, wait);
  return *own_meeting_;
}

// Opens a store on the first rank of this group. Either every rank connects to it or every rank
// throws. All ranks wait for each other here, because later no rank waits for a rank that joins no
// new group.
Rendezvous EngineGroup::host_children(Op op, const WaitOptions& wait) {
  std::array<std::int64_t, 8> place{};  // the address as text; empty if there is no store
  std::unique_ptr<TcpStoreServer> server;
  std::shared_ptr<TcpStore> client;
  std::optional<Error> trouble;
  const auto attempt = [&](auto&& body) {
    try {
      body();
    } catch (const Error& error) {
      trouble = reported_by(self_, fmt::format("opening a store for subgroups of group {}", name_),
                            error);
    }
  };
  if (rank_ == 0) {
    attempt([&] {
      server =
          std::make_unique<TcpStoreServer>(Endpoint{rendezvous_.address, 0}, rendezvous_.secret);
      const auto text = to_string(Endpoint{rendezvous_.address, server->port()});
      std::memcpy(place.data(), text.data(), std::min(text.size(), sizeof place - 1));
    });
  }
  const auto places = gather_for(op, place, wait);
  const std::string text(reinterpret_cast<const char*>(places.data()));
  if (!text.empty()) {
    attempt([&] {
      const auto limit = std::chrono::ceil<std::chrono::milliseconds>(wait.deadline.remaining());
      client = std::make_shared<TcpStore>(parse_endpoint(text, "a group's store"),
                                          rendezvous_.secret, limit);
      client->set_timeout(rendezvous_.store->timeout());
    });
  }
  const auto connected = gather_for(op, std::array<std::int64_t, 1>{client ? 1 : 0}, wait);
  if (trouble) throw *trouble;
  for (std::size_t rank = 0; rank < connected.size(); ++rank) {
    if (connected[rank] != 0) continue;
    fail(ErrorCode::kSystem, "{}: {} cannot reach the store in which groups of group {} form",
         self_, name_of_member(rank), name_);
  }
  Rendezvous meeting = rendezvous_;
  meeting.store = client;
  meeting.hosted = std::make_shared<HostedStore>(std::move(server), std::move(client),
                                                 world_ranks_[0], rendezvous_.environment.rank);
  return meeting;
}

// Forms a group. A rank that dies, aborts or leaves this group meanwhile is detected through this
// group's connections.
std::shared_ptr<ProcessGroup> EngineGroup::form(const Rendezvous& meeting, const std::string& name,
                                                const std::vector<int>& ranks,
                                                const GroupOptions& options) {
  const auto look_after_parent = [&] {
    try {
      std::vector<int> left;
      for (const int rank : backend_->throw_if_failed()) {
        const auto member = std::find(ranks.begin(), ranks.end(), rank);
        if (member != ranks.end()) left.push_back(static_cast<int>(member - ranks.begin()));
      }
      return left;
    } catch (const Error& error) {
      backend_->abort(error);
      throw error.reworded(
          fmt::format("{}; this rank was forming subgroup {}", error.what(), name));
    }
  };
  try {
    return std::make_shared<EngineGroup>(meeting, name, world_numbers_of(*this, ranks), options,
                                         Parent{look_after_parent, symmetric_, failures_});
  } catch (const Error& error) {
    // A member's process has ended. This rank aborts this group with that cause, because it may
    // leave next, and the other ranks would otherwise only see that it has left.
    if (error.code() == ErrorCode::kPeerLost) backend_->abort(error);
    throw;
  }
}

}  // namespace paceline
