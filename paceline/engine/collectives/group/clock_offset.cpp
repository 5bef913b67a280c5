#include "paceline/engine/collectives/group/clock_offset.h"

#include <array>
#include <vector>

namespace paceline {
namespace {

using Nanoseconds = std::chrono::nanoseconds::rep;

constexpr int kRoundTrips = 16;

Nanoseconds now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Rank 0's side: `peer` asks, the answer is the time.
void tell_time(ProcessGroup& group, int peer) {
  for (int i = 0; i < kRoundTrips; ++i) {
    Nanoseconds time = 0;
    group.recv(std::span(&time, 1), peer);
    time = now();
    group.send(std::span(&time, 1), peer);
  }
}

ClockOffset ask_time(ProcessGroup& group) {
  ClockOffset best{{}, std::chrono::nanoseconds::max()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const Nanoseconds sent = now();
    Nanoseconds theirs = sent;
    group.send(std::span(&theirs, 1), 0);
    group.recv(std::span(&theirs, 1), 0);
    const Nanoseconds came = now();
    const std::chrono::nanoseconds error((came - sent + 1) / 2);
    if (error < best.error) {
      best = {std::chrono::nanoseconds(theirs - (sent + (came - sent) / 2)), error};
    }
  }
  return best;
}

}  // namespace

ClockOffset measure_clock_offset(ProcessGroup& group) {
  const Hosts& hosts = group.hosts();
  if (hosts.size() < 2) return {};
  const auto host_of = [&](int rank) { return hosts.host_of[static_cast<std::size_t>(rank)]; };
  ClockOffset own;
  for (const auto& members : hosts.members) {
    const int asker = members.front();
    if (host_of(asker) == host_of(0)) continue;
    if (group.rank() == 0) tell_time(group, asker);
    if (group.rank() == asker) own = ask_time(group);
  }
  const std::array<Nanoseconds, 2> mine = {own.offset.count(), own.error.count()};
  std::vector<Nanoseconds> all(mine.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(mine), std::span(all));
  const auto asker = static_cast<std::size_t>(hosts.neighbours(group.rank()).front());
  return {std::chrono::nanoseconds(all[2 * asker]), std::chrono::nanoseconds(all[2 * asker + 1])};
}

}  // namespace paceline
