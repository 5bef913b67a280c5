#include "paceline/planning/forecast/best_ways.h"

#include <algorithm>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/says.h"
#include "tests/planning/forecast/small_job.h"

namespace paceline::planning {
namespace {

using harness::Says;
using testing::Contains;

TEST(BestWays, replicas_where_communication_is_free) {
  const Search search = search_ways(divisible_job(4, 4), ideal_machine(1, 4), 8);
  EXPECT_EQ(search.ways.front().way, (Way{.replicas = 4}));
  // The search covers every mesh with dp x tp x pp = 4.
  for (const Way& way : {Way{.parts = 4}, Way{.replicas = 2, .parts = 2}}) {
    EXPECT_TRUE(std::any_of(search.ways.begin(), search.ways.end(), [&](const Forecast& one) {
      return one.way == way;
    })) << mesh_text(way);
  }
  EXPECT_TRUE(std::is_sorted(search.ways.begin() + 1, search.ways.end(),
                             [](const Forecast& a, const Forecast& b) {
                               return a.samples_per_second() > b.samples_per_second();
                             }));
}

TEST(BestWays, a_slow_network_keeps_gradients_within_hosts) {
  Machine machine = ideal_machine(2, 2);
  machine.links.network.bytes_per_s = 1e5;
  const Search search = search_ways(job_of_blocks(4), machine, 64);
  const Way& best = search.ways.front().way;
  EXPECT_EQ(best.stages, 2);
  EXPECT_TRUE(best.stages_outside);
  EXPECT_THAT(reasons_for(search),
              Contains(Says("plan.other_way", "replicas only", "pp=1,dp=4,tp=1")));
}

TEST(BestWays, what_does_not_fit_comes_last) {
  JobProfile profile = job_of_blocks(4);
  profile.shard_stages = {0, 1, 2, 3};
  Machine machine = ideal_machine(1, 2);
  machine.memory_bytes = 100e3;  // replicas would need 2 x 4000 x 16 bytes
  const Search search = search_ways(profile, machine, 2);
  EXPECT_TRUE(search.ways.front().fits);
  EXPECT_FALSE(search.ways.back().fits);
  EXPECT_NE(search.ways.front().way, (Way{.replicas = 2}));
  EXPECT_THAT(reasons_for(search), Contains(Says("plan.other_way_too_large")));
}

TEST(BestWays, of_equal_ways_the_simpler_one) {
  JobProfile profile = job_of_blocks(1);
  // Sharding gains nothing, because the optimizer takes no time.
  profile.shard_stages = {0, 1, 2, 3};
  EXPECT_EQ(search_ways(profile, ideal_machine(1, 2), 2).ways.front().way.shard_stage, 0);
}

TEST(BestWays, a_hundred_thousand_ranks_need_few_simulations) {
  JobProfile profile = divisible_job(96, 96);
  profile.shard_stages = {0, 1, 2, 3};
  profile.schedules = {"1f1b", "zero-bubble", "search"};
  const Machine machine{.hosts = 12'500, .ranks_per_host = 8, .mtbf_s = 5000 * 3600.0};
  const Search search = search_ways(profile, machine, 100'000);
  EXPECT_GT(search.ways.size(), 100U);
  EXPECT_LT(search.num_simulations, 1000);
  std::int64_t actions = 0;  // actions of the largest simulated plan
  for (const Forecast& one : search.ways)
    actions = std::max(actions, std::int64_t{one.way.stages} * one.way.micro_batches * 3);
  EXPECT_LT(actions, 500'000);
  EXPECT_EQ(search.ways.front().way.num_ranks(), 100'000);
  EXPECT_LT(search.ways.front().goodput, 1);
}

TEST(BestWays, the_best_pipelines_are_searched_for_a_better_schedule) {
  JobProfile profile = job_of_blocks(8);
  for (LayerProfile& layer : profile.layers) layer.parameters = 100'000'000;
  Machine machine = ideal_machine(1, 2);
  machine.links.reduce_bytes_per_s = 1e6;  // so slow that only a pipeline is worthwhile
  EXPECT_EQ(search_ways(profile, machine, 4).ways.front().way.schedule, "1f1b");
  profile.schedules = {"1f1b", "search"};
  const Search search = search_ways(profile, machine, 4);
  EXPECT_EQ(search.ways.front().way.schedule, kSearched);
  EXPECT_EQ(search.ways.front().way.stages, 2);
  EXPECT_TRUE(std::any_of(search.ways.begin(), search.ways.end(),
                          [](const Forecast& one) { return one.way.schedule == "1f1b"; }));
}

TEST(BestWays, says_when_there_is_none) {
  const JobProfile profile = job_of_blocks(1);
  for (const auto& [ranks, samples] : {std::pair{8, 4}, {3, 64}}) {
    try {
      search_ways(profile, ideal_machine(1, ranks), samples);
      FAIL() << ranks << " ranks, " << samples << " samples, one block";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  Says("plan.batch_too_small", ranks, samples, profile.most_parts, 1, ranks));
    }
  }
}

}  // namespace
}  // namespace paceline::planning
