#include "paceline/launcher/placement/placement.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/launcher/placement/core_division.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::Contains;
using testing::ElementsAre;

// Cpus have the numbers that Linux gives them: the first threads of all cores, then the second
// threads.
constexpr const char* kTwoPackages =
    "package:2 numa:1 l3:4 core:8 pu:2(indexes=2*64:64*1)";  // 64 cores, 128 cpus

Placement place(const Topology& topology, int num_ranks, BindTo to = BindTo::kCore) {
  return plan_placement(topology, {.num_local_ranks = num_ranks, .binding = {.to = to}});
}

// The numbers of the machine's parts, at this level, that the rank may run on.
std::set<int> parts(const Topology& topology, const RankPlacement& rank, Level level) {
  std::set<int> seen;
  for (const Core& core : restrict_topology(topology, rank.cpus).cores) {
    seen.insert(part_of(core, level));
  }
  return seen;
}

std::set<int> core_numbers(const Topology& topology, const RankPlacement& rank) {
  std::set<int> seen;
  for (const Core& core : restrict_topology(topology, rank.cpus).cores) seen.insert(core.number);
  return seen;
}

// Checks what must hold on every machine for every number of ranks up to the number of its cores.
void expect_sound(const Topology& topology, int num_ranks) {
  const Placement placement = place(topology, num_ranks);
  ASSERT_EQ(placement.ranks.size(), static_cast<std::size_t>(num_ranks));
  EXPECT_TRUE(placement.bound);
  EXPECT_FALSE(placement.oversubscribed);
  std::set<int> taken;
  for (const RankPlacement& rank : placement.ranks) {
    ASSERT_FALSE(rank.cpus.empty());
    EXPECT_TRUE(std::is_sorted(rank.cpus.begin(), rank.cpus.end()));
    EXPECT_GE(rank.num_cores, rank.num_threads);
    EXPECT_EQ(rank.num_threads, placement.ranks[0].num_threads);
    for (const int core : core_numbers(topology, rank)) {
      EXPECT_TRUE(taken.insert(core).second) << "core " << core << " is given twice";
    }
    // The rank has every hardware thread of its cores.
    for (const Core& core : restrict_topology(topology, rank.cpus).cores) {
      for (const Core& whole : topology.cores) {
        if (whole.number != core.number) continue;
        EXPECT_EQ(core.cpus, whole.cpus);
      }
    }
  }
}

TEST(Placement, is_sound_on_every_kind_of_machine) {
  for (const char* machine :
       {"core:1 pu:1", "core:2 pu:1", "core:4 pu:2", "package:2 core:6 pu:2",
        "package:1 l3:2 core:4 pu:2", "package:2 numa:4 l3:2 core:4 pu:1", kTwoPackages,
        "package:1 l3:1 l2:6 core:4 pu:1", "package:2 numa:4 l3:4 core:4 pu:2",
        "package:2 l3:1 numa:2 core:5 pu:2"}) {
    const Topology topology = load_topology(machine);
    for (int ranks = 1; ranks <= topology.num_cores(); ++ranks) {
      SCOPED_TRACE(std::string(machine) + ", ranks " + std::to_string(ranks));
      expect_sound(topology, ranks);
    }
  }
}

TEST(Placement, is_sound_in_every_hole_of_a_cpuset) {
  const Topology whole = load_topology("package:2 l3:2 core:3 pu:2");  // 24 cpus
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::vector<int> cpus;
    unsigned random = seed * 2654435761U;
    for (int cpu = 0; cpu < 24; ++cpu) {
      random = random * 1664525U + 1013904223U;
      if (random >> 31 != 0) cpus.push_back(cpu);
    }
    if (cpus.empty()) continue;
    const Topology topology = restrict_topology(whole, cpus);
    SCOPED_TRACE(seed);
    for (int ranks = 1; ranks <= topology.num_cores(); ++ranks) expect_sound(topology, ranks);
  }
}

TEST(Placement, ranks_get_contiguous_cores_with_their_siblings) {
  const auto plan = place(load_topology("core:4 pu:2(indexes=2*4:4*1)"), 2);
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(plan.ranks[1].cpus, ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(plan.ranks[0].num_cores, 2);
  EXPECT_EQ(plan.ranks[0].num_threads, 2);
}

TEST(Placement, no_rank_straddles_a_node_or_cache_where_equal_shares_fit) {
  const Topology topology = load_topology(kTwoPackages);
  for (const int ranks : {2, 4, 8, 16, 32, 64}) {
    for (const RankPlacement& rank : place(topology, ranks).ranks) {
      EXPECT_EQ(parts(topology, rank, Level::kNuma).size(), 1U);
      EXPECT_EQ(parts(topology, rank, Level::kCache).size(), ranks < 8 ? 8U / ranks : 1U);
    }
  }
}

TEST(Placement, an_odd_number_of_ranks_stays_within_nodes_at_the_price_of_a_core) {
  const Topology topology = load_topology("package:2 numa:1 core:8 pu:1");
  // Shares of 5, 5 and 6 cores would put one rank on both nodes.
  const auto plan = place(topology, 3);
  for (const RankPlacement& rank : plan.ranks) {
    EXPECT_EQ(parts(topology, rank, Level::kNuma).size(), 1U);
    EXPECT_EQ(rank.num_threads, 4);
  }
  EXPECT_THAT(plan.reasons, Contains(Says("placement.ranks_stay_together", "NUMA node")));
}

TEST(Placement, a_rank_straddles_when_staying_would_cost_too_much) {
  const Topology topology = load_topology("package:4 numa:1 core:3 pu:1");
  const auto plan = place(topology, 5);  // one core each, or two if a rank may straddle
  EXPECT_EQ(plan.ranks[0].num_threads, 2);
  EXPECT_THAT(plan.reasons, Contains(Says("placement.ranks_straddle", "1 rank uses", "NUMA node")));
}

TEST(Placement, a_rank_that_does_not_need_a_second_node_does_not_get_it) {
  const Topology topology = load_topology("package:2 numa:2 core:8 pu:1");
  const auto plan = place(topology, 3);
  for (const RankPlacement& rank : plan.ranks) {
    EXPECT_EQ(parts(topology, rank, Level::kNuma).size(), 1U);
    EXPECT_EQ(rank.num_cores, 8);
  }
  EXPECT_THAT(plan.reasons, Contains(Says("placement.cores_left_over", 8)));
}

TEST(Placement, a_node_too_small_for_a_rank_is_left_idle) {
  // The process may use one core of the first node and six of the second.
  const Topology topology =
      restrict_topology(load_topology("package:2 numa:1 core:8 pu:1"), {0, 8, 9, 10, 11, 12, 13});
  const auto plan = place(topology, 2);
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(8, 9, 10));
  EXPECT_THAT(plan.ranks[1].cpus, ElementsAre(11, 12, 13));
  EXPECT_THAT(
      plan.reasons,
      Contains("1 core is idle: a rank that used it would straddle two parts of the machine"));
}

TEST(Placement, interleaved_node_numbers_do_not_make_ranks_straddle) {
  Topology topology = load_topology("core:8 pu:1");
  for (int i = 0; i < 8; ++i) topology.cores[i].numa_node = i % 2;
  topology.numa_nodes = {{0, 1}, {1, 1}};
  const auto plan = place(topology, 2);
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(plan.ranks[1].numa_nodes, ElementsAre(1));
}

TEST(Placement, arm_clusters_are_kept_whole) {
  const Topology topology = load_topology("package:1 numa:1 group:6 core:4 pu:1");
  for (const RankPlacement& rank : place(topology, 6).ranks) {
    EXPECT_EQ(parts(topology, rank, Level::kCluster).size(), 1U);
    EXPECT_EQ(rank.num_threads, 4);
  }
  for (const RankPlacement& rank : place(topology, 3).ranks) {
    EXPECT_EQ(parts(topology, rank, Level::kCluster).size(), 2U);
  }
}

TEST(Placement, a_hybrid_processor_computes_on_its_fast_cores) {
  const Topology topology = load_topology(PACELINE_TOPOLOGIES "/hybrid_8_fast_8_slow.xml");
  const auto plan = place(topology, 2);
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(plan.ranks[1].num_threads, 4);
  EXPECT_THAT(plan.reasons, Contains(Says("placement.slower_cores", 8)));
  EXPECT_EQ(automatic_ranks(topology), 8);
}

TEST(Placement, many_slow_cores_outweigh_few_fast_ones) {
  Topology topology = load_topology("core:10 pu:1");
  for (int i = 2; i < 10; ++i) topology.cores[i].speed = 0.5;
  const auto plan = place(topology, 2);
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(0, 2, 3, 4, 5));  // each rank gets one fast core
  EXPECT_THAT(plan.ranks[1].cpus, ElementsAre(1, 6, 7, 8, 9));
  EXPECT_EQ(plan.ranks[0].num_threads, 5);
  for (int ranks = 1; ranks <= 10; ++ranks) expect_sound(topology, ranks);
}

TEST(Placement, cores_that_clock_a_little_higher_are_of_the_same_kind) {
  Topology topology = load_topology("core:8 pu:1");
  for (int i = 0; i < 6; ++i) topology.cores[i].speed = 0.95;
  EXPECT_EQ(place(topology, 2).ranks[0].num_threads, 4);
}

TEST(Placement, more_ranks_than_cores_share_all_of_them_unbound) {
  const auto plan = place(load_topology("core:2 pu:1"), 5);
  EXPECT_FALSE(plan.bound);
  EXPECT_TRUE(plan.oversubscribed);
  for (const RankPlacement& rank : plan.ranks) {
    EXPECT_THAT(rank.cpus, ElementsAre(0, 1));
    EXPECT_EQ(rank.num_threads, 1);
  }
}

TEST(Placement, more_ranks_than_cores_stay_with_the_memory_of_a_node) {
  const auto plan = place(load_topology("package:2 numa:1 core:2 pu:1"), 6);
  EXPECT_TRUE(plan.bound);
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(0, 1));
  EXPECT_THAT(plan.ranks[5].cpus, ElementsAre(2, 3));
  EXPECT_THAT(plan.ranks[5].numa_nodes, ElementsAre(1));
}

TEST(Placement, siblings_let_more_ranks_than_cores_run_without_a_warning) {
  EXPECT_FALSE(place(load_topology("core:2 pu:2"), 4).oversubscribed);
  EXPECT_TRUE(place(load_topology("core:2 pu:2"), 5).oversubscribed);
}

TEST(Placement, a_quota_limits_threads_but_not_cores) {
  Topology topology = load_topology("core:8 pu:1");
  topology.quota = CpuQuota{1.5, "the cgroup"};
  const auto one = place(topology, 1);
  EXPECT_EQ(one.ranks[0].num_cores, 8);
  EXPECT_EQ(one.ranks[0].num_threads, 1);
  EXPECT_FALSE(one.oversubscribed);
  EXPECT_THAT(one.reasons, Contains(Says("placement.quota", "the cgroup", 1.5)));
  EXPECT_FALSE(place(topology, 2).oversubscribed);
  EXPECT_TRUE(place(topology, 3).oversubscribed);
  EXPECT_EQ(automatic_ranks(topology), 1);
  topology.quota = CpuQuota{4, "SLURM_CPUS_PER_TASK"};
  EXPECT_EQ(place(topology, 2).ranks[0].num_threads, 2);
  EXPECT_EQ(automatic_ranks(topology), 4);
}

TEST(Placement, threads_that_were_asked_for_are_given_and_judged) {
  const auto plan =
      plan_placement(load_topology("core:4 pu:1"), {.num_local_ranks = 2, .threads_per_rank = 3});
  EXPECT_EQ(plan.ranks[1].num_threads, 3);
  EXPECT_TRUE(plan.oversubscribed);
}

TEST(Placement, memory_follows_the_cores_where_there_are_nodes) {
  const Topology two = load_topology("package:2 numa:1 core:2 pu:1");
  EXPECT_THAT(place(two, 2).ranks[1].numa_nodes, ElementsAre(1));
  EXPECT_THAT(place(two, 1).ranks[0].numa_nodes, ElementsAre());  // both nodes, so no preference
  EXPECT_THAT(place(two, 2, BindTo::kNone).ranks[1].numa_nodes, ElementsAre());
  EXPECT_THAT(place(load_topology("core:2 pu:1"), 2).ranks[0].numa_nodes, ElementsAre());
}

TEST(Placement, binding_to_a_part_gives_the_whole_of_it) {
  const Topology topology = load_topology("package:2 numa:1 l3:2 core:4 pu:1");  // 16 cores
  const auto nodes = place(topology, 4, BindTo::kNuma);
  EXPECT_THAT(nodes.ranks[1].cpus, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(nodes.ranks[3].cpus.front(), 8);
  EXPECT_EQ(nodes.ranks[0].num_threads, 4);
  EXPECT_EQ(nodes.ranks[0].num_cores, 0);  // 0: the cores are shared
  const auto caches = place(topology, 4, BindTo::kCache);
  EXPECT_THAT(caches.ranks[3].cpus, ElementsAre(12, 13, 14, 15));
  EXPECT_EQ(caches.ranks[3].num_cores, 4);
  const auto two_caches = place(topology, 2, BindTo::kCache);
  EXPECT_EQ(two_caches.ranks[0].cpus.size(), 8U);
  const auto packages = place(topology, 3, BindTo::kPackage);
  // As many as the two ranks that share the other package.
  EXPECT_EQ(packages.ranks[2].num_threads, 4);
  EXPECT_EQ(place(topology, 20, BindTo::kPackage).ranks[19].num_threads, 1);
}

TEST(Placement, binding_to_a_part_gives_no_rank_two_where_one_is_enough) {
  const Topology caches = load_topology("package:2 numa:1 l3:2 core:4 pu:2");  // 32 cpus
  const auto plan = place(caches, 3, BindTo::kCache);
  for (const auto& rank : plan.ranks) {
    EXPECT_EQ(rank.num_cores, 4);
    EXPECT_EQ(rank.numa_nodes.size(), 1U);
  }
  EXPECT_THAT(plan.ranks[1].cpus, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(plan.reasons,
              Contains("--bind cache: a rank may use the whole cache it is put into"));
  EXPECT_THAT(
      plan.reasons,
      Contains("4 cores are idle: ranks that used them would straddle parts of the machine"));
  EXPECT_THAT(plan.reasons, Contains("no rank straddles a NUMA node"));

  const Topology nodes = load_topology("package:2 numa:2 l3:1 core:4 pu:1");
  const auto on_nodes = place(nodes, 3, BindTo::kNuma);
  EXPECT_THAT(on_nodes.ranks[1].numa_nodes, ElementsAre(1));
  EXPECT_THAT(place(nodes, 2, BindTo::kNuma).ranks[1].numa_nodes, ElementsAre(2, 3));
  EXPECT_THAT(place(nodes, 2, BindTo::kNuma).reasons,
              Contains("--bind numa: there are more NUMA nodes than ranks; some ranks have several "
                       "whole NUMA nodes"));
}

TEST(Placement, without_binding_threads_still_match_the_share) {
  const auto plan = place(load_topology("core:4 pu:1"), 2, BindTo::kNone);
  EXPECT_FALSE(plan.bound);
  EXPECT_EQ(plan.ranks[0].num_threads, 2);
  EXPECT_EQ(plan.ranks[0].cpus.size(), 4U);
  EXPECT_EQ(describe_placement(0, plan.ranks[0], plan.bound), "rank 0: not bound, 2 threads");
}

TEST(Placement, a_map_is_followed_and_checked) {
  const Topology topology = load_topology("package:2 numa:1 core:2 pu:2");  // cpus 0-7
  auto with_map = [&](std::vector<std::vector<int>> map) {
    return plan_placement(
        topology, {.num_local_ranks = 2, .binding = {.to = BindTo::kMap, .map = std::move(map)}});
  };
  const auto plan = with_map({{0, 2}, {5}});
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(0, 2));
  EXPECT_EQ(plan.ranks[0].num_threads, 2);
  EXPECT_EQ(plan.ranks[1].num_threads, 1);
  EXPECT_EQ(describe_placement(1, plan.ranks[1], true),
            "rank 1: cpus 5 (1 core), NUMA node 1, 1 thread");
  EXPECT_THROW(with_map({{0}}), Error);
  EXPECT_THROW(with_map({{0}, {8}}), Error);
  EXPECT_THROW(with_map({{0}, {1}, {2}}), Error);
}

TEST(Seats, make_the_smallest_share_as_large_as_it_can_be) {
  EXPECT_THAT(seats_by_size({8, 8}, 3), ElementsAre(2, 1));
  EXPECT_THAT(seats_by_size({3, 8}, 4), ElementsAre(1, 3));
  EXPECT_THAT(seats_by_size({1, 8}, 2), ElementsAre(0, 2));
  EXPECT_THAT(seats_by_size({2, 2}, 4), ElementsAre(2, 2));
}

TEST(WholeParts, are_given_in_shares_as_even_as_they_allow) {
  const Topology topology = load_topology("l3:8 core:2 pu:1");
  const auto caches = parts_at(topology.cores, Level::kCache);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const auto shares = whole_parts(caches, ranks);
    std::size_t total = 0;
    for (const Cores& share : shares) {
      EXPECT_GE(share.size(), 16U / ranks / 2 * 2);
      total += share.size();
    }
    EXPECT_EQ(total, 16U);
  }
}

}  // namespace
}  // namespace paceline::launcher
