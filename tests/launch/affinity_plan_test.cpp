#include "paceline/launch/affinity_plan.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paceline::launch {
namespace {

using testing::ElementsAre;

// `nodes` NUMA nodes with `cores` cores each; hardware thread t of core c is cpu c + t * all cores,
// as on most machines.
Topology machine(int nodes, int cores, int threads_per_core) {
  Topology topology;
  const int all = nodes * cores;
  for (int core = 0; core < all; ++core) {
    Core entry{{}, core / cores};
    for (int thread = 0; thread < threads_per_core; ++thread) {
      entry.cpus.push_back(core + thread * all);
    }
    topology.cores.push_back(entry);
  }
  return topology;
}

TEST(AffinityPlan, ranks_get_contiguous_cores_with_their_siblings) {
  const auto plan = plan_affinity(machine(1, 4, 2), {.num_local_ranks = 2});
  ASSERT_TRUE(plan.bind);
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(plan.ranks[1].cpus, ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(plan.ranks[0].num_cores, 2);
  EXPECT_EQ(plan.ranks[0].num_threads, 2);
  EXPECT_FALSE(plan.oversubscribed);
}

TEST(AffinityPlan, every_core_goes_to_exactly_one_rank) {
  for (int cores = 1; cores <= 17; ++cores) {
    for (int ranks = 1; ranks <= cores; ++ranks) {
      const auto plan = plan_affinity(machine(1, cores, 1), {.num_local_ranks = ranks});
      std::vector<int> all;
      int fewest = cores, most = 0;
      for (const RankCpus& rank : plan.ranks) {
        all.insert(all.end(), rank.cpus.begin(), rank.cpus.end());
        fewest = std::min(fewest, rank.num_cores);
        most = std::max(most, rank.num_cores);
      }
      ASSERT_EQ(all.size(), static_cast<std::size_t>(cores));
      EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), all.size());
      EXPECT_GE(fewest, 1);
      EXPECT_LE(most - fewest, 1);
    }
  }
}

TEST(AffinityPlan, ranks_that_divide_among_numa_nodes_do_not_cross_them) {
  const Topology topology = machine(2, 5, 1);
  const auto plan = plan_affinity(topology, {.num_local_ranks = 4});
  for (const RankCpus& rank : plan.ranks) {
    std::set<int> nodes;
    for (const int cpu : rank.cpus) nodes.insert(topology.cores[cpu].numa_node);
    EXPECT_EQ(nodes.size(), 1U);
  }
}

TEST(AffinityPlan, interleaved_numa_numbers_still_give_every_rank_its_share) {
  Topology topology = machine(1, 4, 1);
  for (int i = 0; i < 4; ++i) topology.cores[i].numa_node = i % 2;
  const auto plan = plan_affinity(topology, {.num_local_ranks = 2});
  EXPECT_EQ(plan.ranks[0].cpus.size(), 2U);
  EXPECT_EQ(plan.ranks[1].cpus.size(), 2U);
}

TEST(AffinityPlan, more_ranks_than_cores_share_all_of_them_unbound) {
  const auto plan = plan_affinity(machine(1, 2, 1), {.num_local_ranks = 5});
  EXPECT_FALSE(plan.bind);
  EXPECT_TRUE(plan.oversubscribed);
  for (const RankCpus& rank : plan.ranks) {
    EXPECT_THAT(rank.cpus, ElementsAre(0, 1));
    EXPECT_EQ(rank.num_threads, 1);
  }
}

TEST(AffinityPlan, siblings_let_more_ranks_than_cores_run_without_a_warning) {
  EXPECT_FALSE(plan_affinity(machine(1, 2, 2), {.num_local_ranks = 4}).oversubscribed);
  EXPECT_TRUE(plan_affinity(machine(1, 2, 2), {.num_local_ranks = 5}).oversubscribed);
}

TEST(AffinityPlan, a_quota_limits_threads_but_not_cores) {
  Topology topology = machine(1, 8, 1);
  topology.cpu_quota = 2.0;
  const auto plan = plan_affinity(topology, {.num_local_ranks = 2});
  EXPECT_EQ(plan.ranks[0].num_cores, 4);
  EXPECT_EQ(plan.ranks[0].num_threads, 1);
  EXPECT_FALSE(plan.oversubscribed);
  topology.cpu_quota = 0.5;
  EXPECT_TRUE(plan_affinity(topology, {.num_local_ranks = 2}).oversubscribed);
}

TEST(AffinityPlan, threads_that_were_asked_for_are_given_and_judged) {
  const auto plan = plan_affinity(machine(1, 4, 1), {.num_local_ranks = 2, .threads_per_rank = 3});
  EXPECT_EQ(plan.ranks[1].num_threads, 3);
  EXPECT_TRUE(plan.oversubscribed);
}

TEST(AffinityPlan, without_binding_threads_still_match_the_share) {
  const auto plan = plan_affinity(machine(1, 4, 1), {.num_local_ranks = 2, .bind = false});
  EXPECT_FALSE(plan.bind);
  EXPECT_EQ(plan.ranks[0].num_threads, 2);
  EXPECT_EQ(plan.ranks[0].cpus.size(), 4U);
  EXPECT_EQ(describe_binding(0, plan.ranks[0], plan.bind), "rank 0: not bound, 2 threads");
}

}  // namespace
}  // namespace paceline::launch
