// Tests which nodes the coordinator admits, and which ones wait as spares.

#include <csignal>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/launcher/coordination/coordinator.h"

#include "tests/harness/says.h"
#include "tests/launcher/coordination/coordinated_job.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using Job = CoordinatedJob;

TEST(CoordinatorAdmission, given_node_ranks_hold_and_the_others_fill_the_gaps) {
  Job job(nodes(3, 3));
  Joining first = job.joining(1), second = job.joining(2);
  first.node_rank = 2;
  second.node_rank = 0;
  job.join(1, first);
  job.join(2, second);
  job.join(3);
  EXPECT_EQ(job.take<StartOrder>(1)->place.node_rank, 2);
  EXPECT_EQ(job.take<StartOrder>(2)->place.node_rank, 0);
  EXPECT_EQ(job.take<StartOrder>(3)->place.node_rank, 1);
}

TEST(CoordinatorAdmission, refuses_a_node_that_does_not_fit_and_names_both_sides) {
  const auto refused = [](auto change, const harness::SaysMatcher& reason) {
    Job job(nodes(2, 3));
    Joining first = job.joining(1), other = job.joining(2);
    first.node_rank = 1;
    job.join(1, first);
    change(other);
    job.join(2, other);
    const auto end = job.take<EndOrder>(2);
    ASSERT_TRUE(end);
    EXPECT_EQ(end->exit_code, 2);
    EXPECT_THAT(end->reason, reason);
    job.pass(3s);
    EXPECT_FALSE(job.take<StartOrder>(1)) << "a refused node counts";
  };
  refused([](Joining& one) { one.terms.version = "2"; }, Says("nodes.other_version", 2, 1));
  refused([](Joining& one) { one.terms.run_id = "x"; }, Says("nodes.other_id", "x", "job"));
  refused([](Joining& one) { one.terms.num_nodes = 4; }, Says("node.other_nnodes", "2:4", "2:3"));
  refused([](Joining& one) { one.terms.logical_shards = 4; }, Says("node.other_shards", 4, 0));
  refused(
      [](Joining& one) {
        one.terms.roles = {{"trainer", 2}, {"observer", 4, true}};
      },
      Says("node.other_roles", "trainer=2,observer=4 until trainer", "not given"));
  refused([](Joining& one) { one.num_ranks = 1 << 30; }, Says("node.too_many_ranks", 1 << 30));
}

TEST(CoordinatorAdmission, one_node_too_many_is_refused_where_none_is_ever_replaced) {
  Job job(nodes(1, 1));
  job.join(1);
  job.join(2);
  const auto end = job.take<EndOrder>(2);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 2);
  EXPECT_THAT(end->reason, Says("node.not_replaced", "1 node"));
}

TEST(CoordinatorAdmission, a_spare_takes_the_place_of_a_lost_node_at_the_next_generation) {
  for (const auto& [min, max_restarts, note] :
       {std::tuple(2, 1, Says("coordinator.restarts", 1, 1, "host h2")),
        std::tuple(
            1, 0,
            Says("coordinator.goes_on_without", "h2", "the connection was closed", "2 nodes"))}) {
    Job job(nodes(min, 2, max_restarts));
    job.join(1);
    job.join(2);
    job.join(3);
    EXPECT_THAT(job.take<WaitOrder>(3)->reason, Says("nodes.waits_to_replace", "2 nodes", 60));
    job.pass(59s);
    job.lose(2);
    EXPECT_TRUE(job.take<StopOrder>(1));
    job.stopped(1, 0);
    const auto start = job.take<StartOrder>(3);
    ASSERT_TRUE(start);
    EXPECT_EQ(place_of(*start), (NodePlace{1, 1, 2, 2, 4, {{kNoRole, 4}}}));
    EXPECT_THAT(start->note, note);
    job.pass(60s);  // the time that it would have waited as a spare
    EXPECT_FALSE(job.take<EndOrder>(3));
  }
}

TEST(CoordinatorAdmission, a_spare_saves_an_elastic_job_that_has_become_too_small) {
  Job elastic(nodes(2, 3));
  for (const int agent : {1, 2, 3, 4}) elastic.join(agent);
  elastic.lose(2);
  elastic.lose(3);
  elastic.stopped(1, 0);
  EXPECT_EQ(elastic.take<StartOrder>(4)->place.num_nodes, 2);
}

CoordinatorSettings shards(int min, int max, std::int64_t logical_shards) {
  CoordinatorSettings settings = nodes(min, max);
  settings.terms.logical_shards = logical_shards;
  return settings;
}

// Each node has two ranks, so 8 shards can be divided among 1, 2 or 4 nodes.
TEST(CoordinatorAdmission, a_job_of_logical_shards_continues_with_the_most_nodes_that_fit) {
  Job job(shards(1, 4, 8));
  for (const int agent : {1, 2, 3, 4}) job.join(agent);
  EXPECT_EQ(job.take<StartOrder>(1)->place.world_size, 8);
  job.lose(4);
  for (const int agent : {1, 2, 3}) job.stopped(agent, 0);
  EXPECT_THAT(job.take<StartOrder>(1)->note,
              Says("shards.some_nodes_wait", "3 nodes", 1, 8, "1, 2, 4 or 8"));
  EXPECT_EQ(place_of(*job.take<StartOrder>(2)), (NodePlace{1, 1, 2, 2, 4, {{kNoRole, 4}}}));
  EXPECT_THAT(job.take<WaitOrder>(3)->reason, Says("shards.node_waits", 8, 3));
  job.pass(120s);
  EXPECT_FALSE(job.take<EndOrder>(3)) << "it waits for as long as it takes";
  job.join(5);
  EXPECT_TRUE(job.take<StopOrder>(1)) << "with the one that waits they are four";
  for (const int agent : {1, 2}) job.stopped(agent, 1);
  EXPECT_EQ(job.take<StartOrder>(3)->place.world_size, 8);
  EXPECT_EQ(job.take<StartOrder>(5)->place.world_size, 8);
}

TEST(CoordinatorAdmission, a_node_that_waits_for_logical_shards_takes_the_place_of_a_lost_one) {
  Job job(shards(1, 3, 8));
  for (const int agent : {1, 2, 3}) job.join(agent);
  EXPECT_EQ(job.take<StartOrder>(1)->place.world_size, 4);
  EXPECT_TRUE(job.take<WaitOrder>(3));
  job.lose(2);
  job.stopped(1, 0);
  EXPECT_EQ(place_of(*job.take<StartOrder>(3)), (NodePlace{1, 1, 2, 2, 4, {{kNoRole, 4}}}));
}

TEST(CoordinatorAdmission, a_newcomer_with_which_the_ranks_would_not_fit_stops_no_rank) {
  Job job(shards(2, 4, 8));
  for (const int agent : {1, 2}) job.join(agent);
  job.pass(3s);
  EXPECT_TRUE(job.take<StartOrder>(1));
  job.join(3);
  EXPECT_FALSE(job.take<StopOrder>(1));
  EXPECT_THAT(job.take<WaitOrder>(3)->reason, Says("shards.newcomer_waits", 8));
  job.join(4);
  EXPECT_TRUE(job.take<StopOrder>(1));
}

TEST(CoordinatorAdmission,
     a_job_whose_ranks_never_fit_the_logical_shards_ends_with_the_numbers_that_do) {
  Job job(shards(3, 3, 8));
  for (const int agent : {1, 2, 3}) job.join(agent);
  const auto end = job.take<EndOrder>(1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 2);
  EXPECT_THAT(end->reason, Says("shards.never_fit", 8, 3, "h1, h2, h3", "1, 2, 4 or 8"));
}

TEST(CoordinatorAdmission, spares_are_admitted_one_after_the_other) {
  Job job(nodes(2, 2, 9));
  for (const int agent : {1, 2, 3, 4, 5}) job.join(agent);
  job.lose(3);  // losing a spare does not count as a loss
  EXPECT_FALSE(job.take<StopOrder>(1));
  job.lose(2);
  job.stopped(1, 0);
  EXPECT_TRUE(job.take<StartOrder>(4));
  EXPECT_TRUE(job.take<WaitOrder>(5));
  EXPECT_FALSE(job.take<StartOrder>(5));
}

TEST(CoordinatorAdmission, a_spare_that_was_not_needed_is_told_why_at_the_deadline) {
  Job job(nodes(1, 2));
  for (const int agent : {1, 2}) job.join(agent);
  job.pass(10s);
  job.join(3);
  EXPECT_TRUE(job.take<WaitOrder>(3));
  job.pass(59s);
  EXPECT_FALSE(job.take<EndOrder>(3));
  job.pass(1s);
  const auto end = job.take<EndOrder>(3);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 2);
  EXPECT_THAT(end->reason, Says("node.spare_in_vain", "job", "2 nodes"));
  job.lose(2);
  job.stopped(1, 0);
  EXPECT_EQ(job.take<StartOrder>(1)->place.num_nodes, 1);
}

TEST(CoordinatorAdmission, a_spare_ends_with_the_job) {
  for (const int exit_code : {0, 7}) {
    Job job(nodes(2, 2, exit_code == 0 ? 3 : 1));
    for (const int agent : {1, 2, 3}) job.join(agent);
    for (int generation = 0; generation < 2 && exit_code != 0; ++generation) {
      job.fail(1, generation, exit_code);
      for (const int agent : {1, 2}) job.stopped(agent, generation);
    }
    if (exit_code == 0) {
      for (const int agent : {1, 2}) job.report(agent, Finished{0});
    }
    const auto end = job.take<EndOrder>(3);
    ASSERT_TRUE(end);
    EXPECT_EQ(end->exit_code, exit_code);
    EXPECT_THAT(end->reason, Says("nodes.not_needed"));
  }
}

TEST(CoordinatorAdmission, a_loss_while_the_job_is_ending_brings_no_spare_in) {
  Job job(nodes(1, 2));
  for (const int agent : {1, 2, 3}) job.join(agent);
  job.report(1, Finished{0});
  job.lose(1);
  EXPECT_TRUE(job.take<WaitOrder>(3));
  job.report(2, Finished{0});
  EXPECT_EQ(job.take<EndOrder>(3)->exit_code, 0);
}

// This happens when a pod with a fixed number is restarted before its death has been noticed.
TEST(CoordinatorAdmission,
     a_node_rank_that_is_taken_is_waited_for_as_long_as_a_loss_may_go_unnoticed) {
  const auto with_rank = [](const Job& job, int agent, int rank) {
    Joining joining = job.joining(agent);
    joining.node_rank = rank;
    return joining;
  };
  Job twins(nodes(2, 3));
  twins.join(1, with_rank(twins, 1, 1));
  twins.join(2, with_rank(twins, 2, 1));
  EXPECT_THAT(twins.take<WaitOrder>(2)->reason, Says("node.rank_taken_yet", 1, "h1", 4));
  twins.pass(4s);
  const auto end = twins.take<EndOrder>(2);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 2);
  EXPECT_THAT(end->reason, Says("nodes.rank_taken", 1, "h1"));
  EXPECT_FALSE(twins.take<StartOrder>(1)) << "a refused node counts";

  Job back(nodes(2, 2, 1));
  back.join(1, with_rank(back, 1, 0));
  back.join(2, with_rank(back, 2, 1));
  back.join(3, with_rank(back, 3, 1));
  back.pass(3s);
  back.lose(2);
  back.stopped(1, 0);
  EXPECT_EQ(place_of(*back.take<StartOrder>(3)), (NodePlace{1, 1, 2, 2, 4, {{kNoRole, 4}}}));
}

}  // namespace
}  // namespace paceline::launcher
