#include <gtest/gtest.h>

#include "paceline/planning/forecast/step_parts.h"

namespace paceline::planning {
namespace {

CostModel round_costs() {
  CostModel costs;
  costs.network = {.latency_s = 1, .message_s = 0, .bytes_per_s = 10};
  costs.sockets = {.latency_s = 0, .message_s = 0, .bytes_per_s = 100};
  costs.reduce_bytes_per_s = 1000;
  costs.copy_bytes_per_s = 500;
  costs.meet_s = 0.5;
  return costs;
}

constexpr AxisPlace kOneHost{.ranks = 4, .hosts = 1, .members = 4, .groups_per_host = 1};
constexpr AxisPlace kFourHosts{.ranks = 8, .hosts = 4, .members = 2, .groups_per_host = 3};

TEST(LinkTime, within_a_host_processors_add_up) {
  // 1000 bytes read at 1000 B/s, written at 500 B/s, two meetings.
  const LinkTime time = all_reduce(1000, kOneHost, round_costs());
  EXPECT_DOUBLE_EQ(time.processor_s, 1 + 2 + 1);
  EXPECT_DOUBLE_EQ(time.wire_s, 0);
  EXPECT_DOUBLE_EQ(reduce_scatter(1000, kOneHost, round_costs()).seconds(), 1 + 1);
  EXPECT_DOUBLE_EQ(all_gather(1000, kOneHost, round_costs(), false).seconds(), 750.0 / 500 + 1);
  EXPECT_DOUBLE_EQ(all_gather(1000, kOneHost, round_costs(), true).seconds(), 1);
}

TEST(LinkTime, across_hosts_groups_share_the_link) {
  // Each of 3 groups sends 2 x 1000 x 3/4 bytes from its host at 10 B/s, in two rounds of 1 s.
  const LinkTime time = all_reduce(1000, kFourHosts, round_costs());
  EXPECT_DOUBLE_EQ(time.wire_s, 3 * 1500.0 / 10 + 2);
  // Within the hosts: 1 + 2 + 1 s. Each of a host's two ranks sends and receives half of 1500 bytes
  // at 100 B/s: 15 s.
  EXPECT_DOUBLE_EQ(time.processor_s, 4 + 15);
  // Half as many bytes cross the network.
  EXPECT_DOUBLE_EQ(reduce_scatter(1000, kFourHosts, round_costs()).wire_s, 3 * 750.0 / 10 + 2);
}

TEST(LinkTime, nothing_for_one_rank) {
  EXPECT_EQ(all_reduce(1000, {}, round_costs()).seconds(), 0);
  EXPECT_EQ(reduce_scatter(1000, {}, round_costs()).seconds(), 0);
  EXPECT_EQ(all_gather(1000, {}, round_costs(), false).seconds(), 0);
}

TEST(LinkTime, messages) {
  EXPECT_DOUBLE_EQ(message(100, true, 1, round_costs()).seconds(), 200.0 / 500 + 0.5);
  EXPECT_DOUBLE_EQ(message(100, false, 2, round_costs()).wire_s, 20 + 1);
}

}  // namespace
}  // namespace paceline::planning
