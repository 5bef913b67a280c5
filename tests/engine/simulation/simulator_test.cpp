// Compares the simulator with closed formulas, where these exist.

#include "paceline/engine/collectives/selection/simulator.h"

#include <set>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/algorithms/scoreboard.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/algorithm.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/transport/wire.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

constexpr double kHeader = sizeof(MessageHeader);

// Round numbers; only the network costs time.
CostModel network_only(double latency_s, double bytes_per_s) {
  CostModel costs;
  costs.network = {.latency_s = latency_s, .message_s = 0, .bytes_per_s = bytes_per_s};
  costs.sockets = {.latency_s = 0, .message_s = 0, .bytes_per_s = 1e30};
  costs.reduce_bytes_per_s = costs.copy_bytes_per_s = 1e30;
  costs.meet_s = 0;
  return costs;
}

SimulationResult simulate_call(Algorithm algorithm, Op op, std::size_t count,
                               const SimulatedCluster& cluster, std::size_t chunk = 1000) {
  return simulate(cluster, [&](int rank) {
    ScheduleSpec spec{op, rank, cluster.hosts.world_size(), 0, count, count, count};
    spec.chunk = chunk;
    spec.hosts = &cluster.hosts;
    return build(algorithm, spec);
  });
}

void expect_near(double actual, double expected, double share = 0.01) {
  EXPECT_NEAR(actual, expected, share * expected);
}

TEST(Simulator, one_message_takes_its_latency_and_its_bytes) {
  const SimulatedCluster cluster{Hosts::blocks(2, 1), network_only(1e-3, 1e6)};
  const auto result = simulate(cluster, [](int rank) {
    Schedule schedule;
    Step step{.kind = Step::Kind::kSend, .peer = 1, .count = 250};
    if (rank == 1) {
      step.kind = Step::Kind::kReceive;
      step.peer = 0;
    }
    schedule.steps.push_back(step);
    return schedule;
  });
  EXPECT_DOUBLE_EQ(result.seconds, 1e-3 + (1000 + kHeader) / 1e6);
  EXPECT_EQ(result.num_messages, 1u);
  EXPECT_EQ(result.network_bytes, 1000u + sizeof(MessageHeader));
}

TEST(Simulator, processor_time_is_paid_at_both_ends_of_a_message) {
  CostModel costs = network_only(0, 1e30);
  costs.network.message_s = 1e-3;
  const SimulatedCluster cluster{Hosts::blocks(4, 1), costs};
  // Three sends and three receives on every rank. Receives overlap with sends, so only the last one
  // adds its time to that of the sends.
  expect_near(simulate_call(Algorithm::kDirect, Op::kAllGather, 1, cluster).seconds, 4e-3);
}

TEST(Simulator, direct_and_ring_reach_the_bandwidth_bound) {
  for (const int ranks : {2, 4, 8, 16}) {
    const SimulatedCluster cluster{Hosts::blocks(ranks, 1), network_only(0, 1e9)};
    const std::size_t count = 16 << 20;
    const double bound = 2.0 * (ranks - 1) / ranks * 4 * static_cast<double>(count) / 1e9;
    expect_near(simulate_call(Algorithm::kDirect, Op::kAllReduce, count, cluster).seconds, bound);
    expect_near(simulate_call(Algorithm::kRing, Op::kAllReduce, count, cluster).seconds, bound);
    if ((ranks & (ranks - 1)) == 0) {
      expect_near(simulate_call(Algorithm::kHalving, Op::kAllReduce, count, cluster).seconds,
                  bound);
    }
  }
}

TEST(Simulator, trees_take_a_latency_a_level) {
  for (const int ranks : {2, 3, 8, 13, 16}) {
    const SimulatedCluster cluster{Hosts::blocks(ranks, 1), network_only(1e-3, 1e30)};
    const double levels = std::bit_width(static_cast<unsigned>(ranks) - 1);
    expect_near(simulate_call(Algorithm::kDoubling, Op::kAllReduce, 10, cluster).seconds,
                levels * 1e-3);
    expect_near(simulate_call(Algorithm::kDirect, Op::kBarrier, 0, cluster).seconds, levels * 1e-3);
    // The time down the tree; at the same time run the rounds in which every rank learns that all
    // have begun.
    const double broadcast = simulate_call(Algorithm::kTree, Op::kBroadcast, 10, cluster).seconds;
    EXPECT_GE(broadcast, levels * 1e-3 * 0.99);
    EXPECT_LE(broadcast, 2 * levels * 1e-3);
  }
}

TEST(Simulator, a_chain_takes_its_length_in_chunks) {
  const int ranks = 10;
  const SimulatedCluster cluster{Hosts::blocks(ranks, 1), network_only(0, 1e9)};
  const std::size_t count = 1 << 20;
  const std::size_t chunk = 1 << 14;
  const double one = (4.0 * chunk + kHeader) / 1e9;
  const double chunks = static_cast<double>(count) / chunk;
  // A byte passes a host's outgoing and incoming link at the same time, so each further hop costs
  // the time of one chunk.
  expect_near(simulate_call(Algorithm::kChain, Op::kBroadcast, count, cluster, chunk).seconds,
              one * (chunks + ranks - 2), 0.03);
}

TEST(Simulator, the_ranks_of_a_host_share_its_interface) {
  const std::size_t count = 1 << 22;
  const double bytes = 4.0 * count;
  for (const int ranks : {1, 2, 4, 8}) {
    const SimulatedCluster cluster{Hosts::blocks(2, ranks), network_only(0, 1e9)};
    const double direct = simulate_call(Algorithm::kDirect, Op::kAllReduce, count, cluster).seconds;
    const double hierarchy =
        simulate_call(Algorithm::kHierarchy, Op::kAllReduce, count, cluster).seconds;
    expect_near(hierarchy, bytes / 1e9);
    expect_near(direct, ranks * bytes / 1e9);
  }
}

TEST(Simulator, reduces_copies_and_meetings_take_time) {
  CostModel costs = network_only(0, 1e30);
  costs.reduce_bytes_per_s = 1e6;
  const std::size_t count = 64 * 4;
  const SimulatedCluster alone{Hosts::blocks(4, 1), costs};
  expect_near(simulate_call(Algorithm::kDirect, Op::kAllReduce, count, alone).seconds,
              4.0 * count / 1e6);
  costs.reduce_bytes_per_s = 1e30;
  costs.meet_s = 1e-3;
  const SimulatedCluster pairs{Hosts::blocks(2, 2), costs};
  expect_near(simulate_call(Algorithm::kHierarchy, Op::kAllReduce, count, pairs).seconds, 2e-3);
}

TEST(Simulator, carries_4096_ranks) {
  const SimulatedCluster cluster{Hosts::blocks(512, 8), CostModel()};
  const auto small = simulate_call(Algorithm::kDoubling, Op::kAllReduce, 100, cluster);
  EXPECT_EQ(small.num_messages, 4096u * 13);  // 12 rounds and a greeting for each rank
  EXPECT_GT(small.seconds, 12 * cluster.costs.sockets.latency_s);
  const auto large = simulate_call(Algorithm::kHierarchy, Op::kAllReduce, 1 << 20, cluster);
  EXPECT_GT(large.seconds, 2 * 4.0 * (1 << 20) / cluster.costs.network.bytes_per_s);
  EXPECT_THROW(simulate_call(Algorithm::kRing, Op::kAllReduce, 1 << 20, cluster), Error);
}

SimulationResult simulate_alike(Algorithm algorithm, ScheduleSpec spec,
                                const SimulatedCluster& cluster, bool hosts_are_alike) {
  const auto schedule_of = [&](int rank) {
    spec.rank = rank;
    return build(algorithm, spec);
  };
  return simulate(cluster, schedule_of, {.hosts_are_alike = hosts_are_alike});
}

// Tests every combination of algorithm and operation that is_alike_on_all_hosts() accepts.
TEST(Simulator, of_one_host_shows_what_all_do_where_they_are_alike) {
  std::set<std::pair<Algorithm, Op>> alike;
  for (const auto& [hosts, ranks] : std::vector<std::pair<int, int>>{{2, 1},
                                                                     {3, 1},
                                                                     {8, 1},
                                                                     {13, 1},
                                                                     {2, 2},
                                                                     {4, 2},
                                                                     {3, 4},
                                                                     {5, 3},
                                                                     {2, 8},
                                                                     {1, 2},
                                                                     {1, 7}}) {
    const SimulatedCluster cluster{Hosts::blocks(hosts, ranks), CostModel()};
    for (const Algorithm algorithm : kAllAlgorithms) {
      if (algorithm == Algorithm::kHierarchy && (hosts == 1 || ranks == 1)) continue;
      for (const Op op : {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kAllToAll,
                          Op::kBarrier, Op::kBroadcast, Op::kReduce, Op::kGather, Op::kScatter}) {
        if (!serves(algorithm, op)) continue;
        for (const std::size_t count : {1u, 832u, 5000u, 1u << 18}) {
          ScheduleSpec spec{op, 0, hosts * ranks, 0, count, count, count};
          spec.chunk = 1000;
          spec.hosts = &cluster.hosts;
          if (!is_alike_on_all_hosts(algorithm, spec)) continue;
          alike.insert({algorithm, op});
          const auto all = simulate_alike(algorithm, spec, cluster, false);
          const auto one = simulate_alike(algorithm, spec, cluster, true);
          EXPECT_NEAR(one.seconds, all.seconds, 1e-9 * all.seconds)
              << name_of(algorithm) << " " << name_of(op) << " " << count << " on " << hosts << "x"
              << ranks;
          EXPECT_EQ(one.num_messages, all.num_messages);
          EXPECT_EQ(one.network_bytes, all.network_bytes);
        }
      }
    }
  }
  EXPECT_EQ(alike.size(), 12u);
}

TEST(Simulator, knows_hosts_that_are_not_alike) {
  const auto is_alike = [](Algorithm algorithm, Op op, std::size_t count, const Hosts& hosts) {
    ScheduleSpec spec{op, 0, hosts.world_size(), 0, count, count, count};
    spec.hosts = &hosts;
    return is_alike_on_all_hosts(algorithm, spec);
  };
  const Hosts blocks = Hosts::blocks(4, 2);
  EXPECT_TRUE(is_alike(Algorithm::kDirect, Op::kAllReduce, 1024, blocks));
  // The hosts differ because of the last chunk.
  EXPECT_FALSE(is_alike(Algorithm::kDirect, Op::kAllReduce, 1025, blocks));
  EXPECT_FALSE(is_alike(Algorithm::kDirect, Op::kBroadcast, 1024, blocks));  // because of the root
  EXPECT_TRUE(is_alike(Algorithm::kHierarchy, Op::kReduceScatter, 64, blocks));
  EXPECT_FALSE(is_alike(Algorithm::kHierarchy, Op::kReduceScatter, 64, Hosts::blocks(4, 3)));
  EXPECT_FALSE(is_alike(Algorithm::kDirect, Op::kAllToAll, 64, Hosts::from({0, 1, 0, 1})));
  EXPECT_FALSE(is_alike(Algorithm::kDirect, Op::kAllToAll, 64, Hosts::from({0, 0, 1})));
  const SimulatedCluster dealt{Hosts::from({0, 1, 0, 1}), CostModel()};
  EXPECT_THROW(simulate(dealt, [](int) { return Schedule(); }, {.hosts_are_alike = true}), Error);
}

TEST(Simulator, takes_one_host_of_4096_ranks_for_all) {
  for (const auto& [hosts, ranks] :
       std::vector<std::pair<int, int>>{{4096, 1}, {512, 8}, {1, 4096}}) {
    const SimulatedCluster cluster{Hosts::blocks(hosts, ranks), CostModel()};
    const std::size_t count = 1000;
    ScheduleSpec spec{Op::kAllToAll, 0, 4096, 0, count, count, count};
    spec.hosts = &cluster.hosts;
    ASSERT_TRUE(is_alike_on_all_hosts(Algorithm::kDirect, spec));
    const auto result = simulate_alike(Algorithm::kDirect, spec, cluster, true);
    EXPECT_EQ(result.num_messages, 4096u * 4095u);
    const auto leaving =
        static_cast<std::uint64_t>(ranks) * static_cast<std::uint64_t>(4096 - ranks);
    EXPECT_EQ(result.network_bytes,
              static_cast<std::uint64_t>(hosts) * leaving * (4 * count + sizeof(MessageHeader)));
    // At least the processor time for the messages to and from the 4,095 other ranks.
    EXPECT_GT(result.seconds, 4095 * cluster.costs.sockets.message_s);
  }
}

TEST(RangesInUse, keep_reads_and_writes_apart) {
  RangesInUse ranges;
  ranges.begin({100, 200}, false);
  ranges.begin({100, 110}, false);
  ranges.begin({300, 301}, true);
  ranges.begin({50, 50}, true);  // an empty range
  EXPECT_TRUE(ranges.may_read({0, 300}));
  EXPECT_TRUE(ranges.may_read({301, 400}));
  EXPECT_FALSE(ranges.may_read({0, 301}));
  EXPECT_TRUE(ranges.may_write({200, 300}));
  EXPECT_FALSE(ranges.may_write({199, 200}));
  EXPECT_FALSE(ranges.may_write({0, 101}));
  ranges.end({100, 200}, false);
  EXPECT_TRUE(ranges.may_write({110, 300}));
  EXPECT_FALSE(ranges.may_write({109, 110}));
  ranges.end({100, 110}, false);
  EXPECT_FALSE(ranges.empty());
  ranges.end({300, 301}, true);
  EXPECT_TRUE(ranges.empty());
  EXPECT_TRUE(ranges.may_write({0, 400}));
}

TEST(Simulator, names_a_rank_that_waits_forever) {
  const SimulatedCluster cluster{Hosts::blocks(2, 1), CostModel()};
  try {
    simulate(cluster, [](int rank) {
      Schedule schedule;
      if (rank == 1) {
        schedule.steps.push_back({.kind = Step::Kind::kReceive, .peer = 0, .count = 1});
      }
      return schedule;
    });
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Says("simulator.waits_forever", 1));
  }
}

}  // namespace
}  // namespace paceline
