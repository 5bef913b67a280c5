#include "paceline/planning/forecast/link_time.h"

#include <cmath>

namespace paceline::planning {
namespace {

// Between the hosts of a group, every host's bytes in and out at once: the part (h - 1) / h of the
// buffer in one direction, in as many rounds as a binary tree of the hosts has levels.
LinkTime across_hosts(double bytes, const AxisPlace& place, const CostModel& links) {
  if (place.hosts == 1) return {};
  const double hosts = place.hosts;
  const double through_link = bytes * (hosts - 1) / hosts * place.groups_a_host;
  const double rounds = std::ceil(std::log2(hosts));
  // A rank moves its share of what its host sends and receives.
  const double moved = 2 * bytes * (hosts - 1) / hosts / place.members;
  return {.processor_s = moved / links.sockets.bytes_per_s + 2 * rounds * links.network.message_s,
          .wire_s = through_link / links.network.bytes_per_s + rounds * links.network.latency_s};
}

}  // namespace

LinkTime operator+(const LinkTime& a, const LinkTime& b) {
  return {a.processor_s + b.processor_s, a.wire_s + b.wire_s};
}

// Each rank reads its part of every buffer, and writes it into every buffer.
LinkTime all_reduce(double bytes, const AxisPlace& place, const CostModel& links) {
  if (place.ranks == 1) return {};
  LinkTime time;
  if (place.members > 1) {
    time.processor_s =
        bytes / links.reduce_bytes_per_s + bytes / links.copy_bytes_per_s + 2 * links.meet_s;
  }
  return time + across_hosts(2 * bytes, place, links);
}

LinkTime reduce_scatter(double bytes, const AxisPlace& place, const CostModel& links) {
  if (place.ranks == 1) return {};
  LinkTime time;
  if (place.members > 1) time.processor_s = bytes / links.reduce_bytes_per_s + 2 * links.meet_s;
  return time + across_hosts(bytes, place, links);
}

LinkTime all_gather(double bytes, const AxisPlace& place, const CostModel& links,
                    bool once_a_host) {
  if (place.ranks == 1) return {};
  LinkTime time;
  if (place.members > 1) {
    time.processor_s = 2 * links.meet_s;
    if (!once_a_host) {
      time.processor_s += bytes * (place.members - 1) / place.members / links.copy_bytes_per_s;
    }
  }
  return time + across_hosts(bytes, place, links);
}

LinkTime message(double bytes, bool same_host, int sharing, const CostModel& links) {
  if (same_host) return {.processor_s = 2 * bytes / links.copy_bytes_per_s, .wire_s = links.meet_s};
  return {.processor_s = bytes / links.sockets.bytes_per_s + links.network.message_s,
          .wire_s = bytes * sharing / links.network.bytes_per_s + links.network.latency_s};
}

}  // namespace paceline::planning
