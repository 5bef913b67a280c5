#include "paceline/planning/forecast/way.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/planning/schedules/pipeline_schedule.h"
#include "paceline/planning/schedules/schedule_checks.h"

#include "tests/harness/says.h"
#include "tests/planning/forecast/small_job.h"

namespace paceline::planning {
namespace {

using harness::Says;
using testing::ElementsAre;

void expect_place(const AxisPlace& place, int hosts, int members, int groups) {
  EXPECT_EQ(place.hosts, hosts);
  EXPECT_EQ(place.members, members);
  EXPECT_EQ(place.groups_per_host, groups);
}

TEST(Way, as_flags) {
  EXPECT_THAT(flags_of({.replicas = 2}), ElementsAre("--mesh", "pp=1,dp=2,tp=1"));
  EXPECT_THAT(flags_of({.replicas = 2,
                        .parts = 4,
                        .stages = 2,
                        .stages_outside = false,
                        .shard_stage = 1,
                        .schedule = "zero-bubble",
                        .micro_batches = 8}),
              ElementsAre("--mesh", "dp=2,pp=2,tp=4", "--schedule", "zero-bubble",
                          "--micro-batches", "8", "--shard", "1"));
}

TEST(Way, where_the_ranks_of_an_axis_are) {
  const Machine machine{.hosts = 4, .ranks_per_host = 4};
  // tp runs within a host, dp over all hosts: a dp group has one rank of each tp pair on every
  // host.
  const Way way{.replicas = 8, .parts = 2};
  expect_place(place_of_parts(way, machine), 1, 2, 2);
  expect_place(place_of_replicas(way, machine), 4, 2, 2);
  // Stages outside: the replicas of a stage share a host; inside: they are on different ones.
  const Way outside{.replicas = 4, .stages = 4};
  expect_place(place_of_replicas(outside, machine), 1, 4, 1);
  EXPECT_THAT(hosts_of_stages(outside, machine), ElementsAre(0, 1, 2, 3));
  const Way inside{.replicas = 4, .stages = 4, .stages_outside = false};
  expect_place(place_of_replicas(inside, machine), 4, 1, 4);
  EXPECT_THAT(hosts_of_stages(inside, machine), ElementsAre(0, 0, 0, 0));
}

TEST(Way, stages_are_cut_by_what_blocks_cost) {
  JobProfile profile = job_of_blocks(5);  // 3 ms per sample each
  profile.layers.insert(profile.layers.begin(), {.name = "embedding"});
  profile.layers.push_back({.name = "head", .forward = {.sample_s = 3e-3}});
  const auto ranges = [&](int stages) {
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (const LayerRange& range :
         cut_into_stages(profile, {.stages = stages}, 1, pipeline::looped_layout(stages, 1)))
      pairs.emplace_back(range.begin, range.end);
    return pairs;
  };
  EXPECT_THAT(ranges(1), ElementsAre(std::pair(0, 7)));
  // The head costs as much as a block: the stages are the embedding with three blocks, and two
  // blocks with the head.
  EXPECT_THAT(ranges(2), ElementsAre(std::pair(0, 4), std::pair(4, 7)));
  EXPECT_THAT(ranges(5), ElementsAre(std::pair(0, 2), std::pair(2, 3), std::pair(3, 4),
                                     std::pair(4, 5), std::pair(5, 7)));
  // The time for adding gradients counts too.
  profile.layers[5].add_s = 4e-3;
  EXPECT_THAT(ranges(2), ElementsAre(std::pair(0, 5), std::pair(5, 7)));
}

TEST(Way, why_some_are_none) {
  JobProfile profile = divisible_job(2, 4);
  const Machine machine{.ranks_per_host = 4};
  const auto reason = [&](const Way& way) { return why_not(way, profile, machine, 12); };
  EXPECT_EQ(reason({.replicas = 4}), "");
  EXPECT_EQ(reason({.replicas = 2, .stages = 2, .micro_batches = 3}), "");
  EXPECT_THAT(reason({.replicas = 3}), Says("way.other_number_of_ranks", "pp=1,dp=3,tp=1", 3, 4));
  EXPECT_THAT(reason({.stages = 4, .micro_batches = 4}), Says("way.few_blocks", 4, 2));
  EXPECT_THAT(reason({.replicas = 2, .stages = 2, .micro_batches = 1}),
              Says("way.few_micro_batches", 1, 2));
  EXPECT_THAT(reason({.replicas = 2, .stages = 2, .micro_batches = 4}),
              Says("way.micro_batches_do_not_divide", 4, 6));
  EXPECT_THAT(reason({.replicas = 4, .shard_stage = 2}), Says("way.no_such_sharding", 2));
  EXPECT_THAT(why_not({.replicas = 4}, profile, machine, 6),
              Says("way.batch_does_not_divide", 4, 6));
  profile.schedules.clear();
  EXPECT_THAT(reason({.replicas = 2, .stages = 2, .micro_batches = 2}),
              Says("way.no_pipelines", 2));
  profile.most_parts = 6;
  EXPECT_THAT(reason({.parts = 4}), Says("way.heads_do_not_divide", 4, 6));
}

}  // namespace
}  // namespace paceline::planning
