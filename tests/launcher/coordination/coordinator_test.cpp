// The coordinator alone, without connections and agents.

#include "paceline/launcher/coordination/coordinator.h"

#include <csignal>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

#include "tests/harness/says.h"
#include "tests/launcher/coordination/coordinated_job.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;
using Job = CoordinatedJob;

TEST(Coordinator, starts_when_all_nodes_are_there_with_ranks_in_a_row) {
  Job job(nodes(2, 2));
  job.join(5);
  EXPECT_FALSE(job.take<StartOrder>(5));
  Joining uneven = job.joining(7);
  uneven.num_ranks = 3;
  job.join(7, uneven);
  const auto first = job.take<StartOrder>(5), second = job.take<StartOrder>(7);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(place_of(*first), (NodePlace{0, 0, 2, 0, 5, {{kNoRole, 5}}}));
  EXPECT_EQ(place_of(*second), (NodePlace{0, 1, 2, 2, 5, {{kNoRole, 5}}}));
  EXPECT_EQ(second->store, (Endpoint{"10.0.0.5", 2}));
  EXPECT_EQ(second->master, (Endpoint{"10.0.0.5", 3}));
  EXPECT_THAT(second->stand_ins,
              testing::ElementsAre(Endpoint{"10.0.0.5", 1}, Endpoint{"10.0.0.7", 1}));
}

TEST(Coordinator, waits_for_more_nodes_until_the_last_call_is_over) {
  Job job(nodes(1, 3));
  job.join(1);
  job.pass(2s);
  job.join(2);
  EXPECT_FALSE(job.take<StartOrder>(1));
  job.pass(1s);
  EXPECT_EQ(job.take<StartOrder>(1)->place.num_nodes, 2);
}

TEST(Coordinator, ends_when_too_few_nodes_arrive) {
  Job job(nodes(2, 2));
  job.join(1);
  job.pass(60s);
  const auto end = job.take<EndOrder>(1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 3);
  EXPECT_THAT(end->reason, Says("nodes.too_few_came", "1 node", 60, "2 are", "h1"));
  EXPECT_TRUE(job.over());
}

TEST(Coordinator, tells_waiting_nodes_from_time_to_time_which_are_missing) {
  Job job(nodes(3, 3));
  job.join(1);
  job.pass(4s);
  EXPECT_FALSE(job.take<WaitOrder>(1));
  job.join(2);
  job.pass(1s);
  for (const int agent : {1, 2}) {
    const auto wait = job.take<WaitOrder>(agent);
    ASSERT_TRUE(wait);
    EXPECT_THAT(wait->reason, Says("coordinator.waits_for_others", 2, "3 nodes", "h1, h2", 55));
  }
  job.pass(29s);
  EXPECT_FALSE(job.take<WaitOrder>(1));
  job.pass(1s);
  EXPECT_TRUE(job.take<WaitOrder>(1));
  job.join(3);
  EXPECT_TRUE(job.take<StartOrder>(1));
  job.pass(60s);
  EXPECT_FALSE(job.take<WaitOrder>(1));
}

TEST(Coordinator, ends_in_order_when_every_node_has) {
  Job job(nodes(2, 2));
  job.join(1);
  job.join(2);
  job.report(1, Finished{0});
  EXPECT_FALSE(job.over());
  job.lose(1);  // its ranks have already finished
  EXPECT_FALSE(job.over());
  job.report(2, Finished{0});
  EXPECT_EQ(job.take<EndOrder>(2)->exit_code, 0);
}

TEST(Coordinator, ranks_that_stopped_as_agreed_end_the_job_with_that_code_and_no_restart) {
  Job job(nodes(2, 2, 5));
  job.join(1);
  job.join(2);
  job.report(1, Finished{0, true});
  EXPECT_FALSE(job.over());
  job.report(2, Finished{0});
  EXPECT_TRUE(job.over());
  const auto end = job.take<EndOrder>(2);
  ASSERT_TRUE(end);
  EXPECT_EQ(*end, (EndOrder{kStoppedAsAgreed, "", ""}));
}

TEST(Coordinator, a_failure_stops_all_and_starts_the_next_generation_once_nothing_is_left) {
  Job job(nodes(2, 2, 1));
  job.join(1);
  job.join(2);
  job.take<StartOrder>(2);
  job.fail(1, 0, 7);
  EXPECT_THAT(job.take<StopOrder>(2)->reason, HasSubstr("failure at h1"));
  job.stopped(1, 0);
  job.take<StartOrder>(1);
  job.fail(2, 0, 1);  // a consequence of the first failure
  job.stopped(2, 0);
  const auto next = job.take<StartOrder>(1);
  ASSERT_TRUE(next);
  EXPECT_EQ(place_of(*next), (NodePlace{1, 0, 2, 0, 4, {{kNoRole, 4}}}));
  EXPECT_THAT(next->note, Says("coordinator.restarts", 1, 1, "failure at h1"));
  job.fail(2, 1, 0, SIGSEGV);
  job.stopped(2, 1);
  job.stopped(1, 1);
  const auto end = job.take<EndOrder>(1);
  EXPECT_EQ(end->exit_code, 128 + SIGSEGV);
  EXPECT_EQ(end->cause, "failure at h2");
  EXPECT_THAT(end->reason, Says("restarts.used_up", "1 restart"));
}

TEST(Coordinator, a_report_of_an_older_generation_is_dropped) {
  Job job(nodes(2, 2, 9));
  job.join(1);
  job.join(2);
  job.fail(1, 0, 7);
  job.stopped(1, 0);
  job.stopped(2, 0);
  EXPECT_EQ(job.take<StartOrder>(2)->place.generation, 1);
  job.fail(2, 0, 9);
  job.report(2, Finished{0});
  job.stopped(2, 0);
  EXPECT_FALSE(job.take<StopOrder>(1));
  EXPECT_FALSE(job.over());
}

TEST(Coordinator, a_signal_weighs_more_than_an_exit_code_and_a_lost_host_more_than_both) {
  Job job(nodes(2, 3));
  for (const int agent : {1, 2, 3}) job.join(agent);
  job.fail(1, 0, 1);  // it noticed the end of agent 2's rank before agent 2 did
  job.fail(2, 0, 0, SIGKILL);
  for (const int agent : {1, 2, 3}) job.stopped(agent, 0);
  EXPECT_EQ(job.take<EndOrder>(3)->cause, "failure at h2");

  Job other(nodes(3, 3));
  for (const int agent : {1, 2, 3}) other.join(agent);
  other.fail(1, 0, 1);
  other.stopped(1, 0);
  other.stopped(2, 0);
  other.lose(3);
  EXPECT_THAT(other.take<EndOrder>(1)->cause, Says("run.host_lost", "h3"));
}

TEST(Coordinator, the_failure_that_happened_first_counts_and_not_the_report_that_came_first) {
  Job job(nodes(2, 2, 1));
  for (const int agent : {1, 2}) job.join(agent);
  const auto failed = [&](int agent, const char* cause, std::chrono::nanoseconds at) {
    job.report(agent,
               RankFailure{0, {.cause = cause, .exit_code = 5, .at = at, .clock_error = 1ms}});
  };
  failed(1, "the later one", 10s);
  failed(2, "the earlier one", 9s);
  for (const int agent : {1, 2}) job.stopped(agent, 0);
  EXPECT_THAT(job.take<StartOrder>(1)->note, Says("coordinator.restarts", 1, 1, "the earlier one"));
}

TEST(Coordinator, names_the_first_failure_when_all_reports_on_their_way_have_arrived) {
  Job job(nodes(3, 3));
  for (const int agent : {1, 2, 3}) job.join(agent);
  job.expect_reports_within(300ms);
  job.fail(1, 0, 1);
  job.pass(250ms);
  EXPECT_THAT(job.failed_first(), testing::IsEmpty());
  job.fail(2, 0, 0, SIGKILL);
  job.pass(100ms);
  EXPECT_THAT(job.failed_first(), testing::ElementsAre(2));
  job.fail(3, 0, 0, SIGSEGV);  // too late to be printed, so it cannot become the cause
  for (const int agent : {1, 2, 3}) job.stopped(agent, 0);
  EXPECT_THAT(job.failed_first(), testing::ElementsAre(2));
  EXPECT_EQ(job.take<EndOrder>(3)->cause, "failure at h2");
}

TEST(Coordinator, says_it_at_once_when_all_ranks_have_ended_or_there_is_one_node) {
  Job job(nodes(2, 2, 1));
  for (const int agent : {1, 2}) job.join(agent);
  job.expect_reports_within(10s);
  for (int generation = 0; generation < 2; ++generation) {
    job.fail(1 + generation, generation, 3);
    for (const int agent : {1, 2}) job.stopped(agent, generation);
  }
  EXPECT_THAT(job.failed_first(), testing::ElementsAre(1, 2));

  Job single(nodes(1, 1));
  single.join(1);
  single.expect_reports_within(10s);
  single.fail(1, 0, 3);
  single.pass(0s);
  EXPECT_THAT(single.failed_first(), testing::ElementsAre(1));
}

TEST(Coordinator, goes_on_with_fewer_nodes_at_once_and_takes_a_new_one_in) {
  Job job(nodes(1, 2));
  job.join(1);
  job.join(2);
  job.lose(2);
  EXPECT_THAT(job.take<StopOrder>(1)->reason, Says("run.host_lost", "h2"));
  job.stopped(1, 0);
  const auto alone = job.take<StartOrder>(1);
  ASSERT_TRUE(alone);
  EXPECT_EQ(place_of(*alone), (NodePlace{1, 0, 1, 0, 2, {{kNoRole, 2}}}));
  EXPECT_THAT(alone->note, Says("run.goes_on", "1 node"));
  job.join(3);
  EXPECT_THAT(job.take<StopOrder>(1)->reason, Says("coordinator.host_joins", "h3"));
  job.stopped(1, 1);
  EXPECT_EQ(place_of(*job.take<StartOrder>(1)), (NodePlace{2, 0, 2, 0, 4, {{kNoRole, 4}}}));
  EXPECT_EQ(place_of(*job.take<StartOrder>(3)), (NodePlace{2, 1, 2, 2, 4, {{kNoRole, 4}}}));
}

TEST(Coordinator, a_host_that_joins_does_not_hold_up_a_job_that_is_ending) {
  Job job(nodes(1, 3));
  job.join(1);
  job.join(2);
  job.pass(3s);
  job.report(1, Finished{0});
  job.join(3);
  EXPECT_FALSE(job.take<StopOrder>(2));
  job.report(2, Finished{0});
  EXPECT_EQ(job.take<EndOrder>(3)->exit_code, 0);
}

TEST(Coordinator, a_second_loss_during_recovery_is_survived) {
  Job job(nodes(1, 3));
  for (const int agent : {1, 2, 3}) job.join(agent);
  job.lose(2);
  job.stopped(1, 0);
  job.lose(3);
  EXPECT_EQ(job.take<StartOrder>(1)->place.num_nodes, 1);
}

TEST(Coordinator, waits_for_a_replacement_where_a_lost_host_is_needed_and_restarts_are_allowed) {
  Job job(nodes(2, 2, 1));
  job.join(1);
  job.join(2);
  job.lose(2);
  job.take<StopOrder>(1);
  job.stopped(1, 0);
  EXPECT_FALSE(job.take<StartOrder>(1));
  job.join(3);
  EXPECT_EQ(job.take<StartOrder>(3)->place.generation, 1);
}

TEST(Coordinator, a_node_that_is_stopped_leaves_an_elastic_job_and_ends_another_one) {
  Job elastic(nodes(1, 2));
  elastic.join(1);
  elastic.join(2);
  elastic.report(2, Leaving{SIGTERM});
  EXPECT_THAT(elastic.take<StopOrder>(1)->reason, Says("coordinator.host_leaves", "h2", "SIGTERM"));
  elastic.stopped(1, 0);
  EXPECT_FALSE(elastic.take<StartOrder>(1)) << "ranks of the leaving host may still run";
  elastic.lose(2);
  EXPECT_FALSE(elastic.take<StartOrder>(1)) << "the signal may be on its way to this host too";
  elastic.pass(1s);
  EXPECT_EQ(elastic.take<StartOrder>(1)->place.num_nodes, 1);

  Job fixed(nodes(2, 2, 5));
  fixed.join(1);
  fixed.join(2);
  fixed.report(2, Leaving{SIGTERM});
  EXPECT_EQ(fixed.take<EndOrder>(1)->exit_code, 128 + SIGTERM);
}

// Otherwise the host that gets the signal last would start ranks of a smaller job for a moment.
TEST(Coordinator, a_signal_for_all_hosts_starts_nothing_on_the_last_one) {
  Job job(nodes(1, 2));
  job.join(1);
  job.join(2);
  job.report(2, Leaving{SIGINT});
  job.stopped(1, 0);
  job.lose(2);
  job.pass(900ms);
  EXPECT_FALSE(job.take<StartOrder>(1));
  job.report(1, Leaving{SIGINT});
  EXPECT_TRUE(job.over());
  EXPECT_FALSE(job.take<StartOrder>(1));
}

TEST(Coordinator, a_pause_that_is_over_is_no_deadline_for_a_job_that_waits_for_nodes) {
  Job job(nodes(2, 3));
  for (const int agent : {1, 2, 3}) job.join(agent);
  job.report(3, Leaving{SIGTERM});
  for (const int agent : {1, 2}) job.stopped(agent, 0);
  job.lose(3);
  job.lose(2);  // now one node of two is left
  job.pass(1s);
  EXPECT_FALSE(job.over());
  EXPECT_FALSE(job.take<StartOrder>(1));
  EXPECT_GT(job.coordinator().next_deadline(), Coordinator::Moment{} + 1s);
}

// Only every third generation dies early. The others make steps, and end because a node is lost or
// joins.
TEST(Coordinator, early_deaths_far_apart_are_not_a_crash_loop_of_an_elastic_job) {
  Job job(nodes(1, 2, 1000));
  job.join(1);
  job.join(2);
  for (int generation = 0; generation < 15; generation += 3) {
    job.fail(1, generation, 7);
    job.stopped(1, generation, 100ms, 0);
    job.stopped(2, generation, 100ms, 0);
    job.pass(6s);
    ASSERT_TRUE(job.take<StartOrder>(1)) << "in generation " << generation;
    job.lose(2);
    job.stopped(1, generation + 1, 600s, 5000);
    ASSERT_TRUE(job.take<StartOrder>(1));
    job.join(2);
    job.stopped(1, generation + 2, 600s, 5000);
    ASSERT_TRUE(job.take<StartOrder>(1));
  }
}

// The program has no part in these ends.
TEST(Coordinator, hosts_that_are_lost_early_are_not_a_crash_loop) {
  Job job(nodes(2, 2, 1000));
  job.join(1);
  for (int generation = 0; generation < 5; ++generation) {
    job.join(2);
    ASSERT_TRUE(job.take<StartOrder>(1)) << "in generation " << generation;
    job.lose(2);
    job.stopped(1, generation, 100ms, 0);
  }
}

TEST(Coordinator, failures_after_a_long_life_are_not_a_crash_loop) {
  Job job(nodes(1, 1, 50));
  job.join(1);
  for (int generation = 0; generation < 20; ++generation) {
    job.fail(1, generation, 3);
    job.stopped(1, generation, 10s);
    ASSERT_TRUE(job.take<StartOrder>(1)) << generation;
  }
}

TEST(Coordinator, says_with_the_order_to_stop_whether_a_host_is_lost) {
  Job job(nodes(1, 3, 10));
  for (const int agent : {1, 2, 3}) job.join(agent);
  job.lose(3);
  EXPECT_EQ(job.take<StopOrder>(1)->failed, Failure::Kind::kHost);
  for (const int agent : {1, 2}) job.stopped(agent, 0);
  job.fail(2, 1, 3);
  EXPECT_EQ(job.take<StopOrder>(1)->failed, Failure::Kind::kRank);
}

TEST(Coordinator, a_node_whose_ranks_do_not_end_is_lost_to_the_job) {
  Job job(nodes(1, 2));
  job.join(1);
  job.join(2);
  job.fail(1, 0, 3);
  job.stopped(1, 0);
  job.pass(59s);
  EXPECT_FALSE(job.take<EndOrder>(2));
  job.pass(1s);
  const auto end = job.take<EndOrder>(2);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, kExitEnvironment);
  EXPECT_THAT(end->cause, Says("coordinator.ranks_did_not_end", "h2", 60));
  const auto start = job.take<StartOrder>(1);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->place.world_size, 2);
}

TEST(Coordinator, a_node_that_leaves_between_generations_does_not_end_a_job_that_can_do_without) {
  Job job(nodes(1, 3, 10));
  for (const int agent : {1, 2, 3}) job.join(agent);
  for (const int generation : {0, 1}) {
    job.fail(1, generation, 3 + generation);
    for (const int agent : {1, 2, 3}) job.stopped(agent, generation);
  }
  // After the second early death the coordinator pauses.
  job.report(2, Leaving{15});
  EXPECT_FALSE(job.over());
  job.pass(1s);
  ASSERT_TRUE(job.take<StartOrder>(1));
  EXPECT_EQ(job.take<StartOrder>(3)->place.world_size, 4);
  job.lose(2);
  EXPECT_FALSE(job.take<StopOrder>(1));
}

TEST(Coordinator, where_steps_are_counted_they_alone_are_progress) {
  Job stepping(nodes(2, 2, 50));
  stepping.join(1);
  stepping.join(2);
  for (int generation = 0; generation < 20; ++generation) {
    stepping.fail(1, generation, 3);
    stepping.stopped(1, generation, 10ms, 0);
    stepping.stopped(2, generation, 10ms, 1);
    stepping.pass(6s);
    ASSERT_TRUE(stepping.take<StartOrder>(1)) << generation;
  }
  Job idle(nodes(1, 1, 50));
  idle.join(1);
  for (int generation = 0; generation < RestartPolicy::kCrashLoop; ++generation) {
    idle.fail(1, generation, 3);
    idle.stopped(1, generation, 60s, 0);
  }
  EXPECT_TRUE(idle.over());
  EXPECT_THAT(idle.take<EndOrder>(1)->reason,
              Says("restarts.crash_loop", "ended with exit code 3", 3));
}

// Every agent knows how many restarts are left from the order that started its generation.
TEST(Coordinator, a_successor_goes_on_counting_restarts_where_the_first_one_was) {
  Job first(nodes(2, 3, 2));
  for (const int agent : {1, 2, 3}) first.join(agent);
  first.fail(2, 0, 3);
  for (const int agent : {1, 2, 3}) first.stopped(agent, 0, 60s);
  const auto last = first.take<StartOrder>(2);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->place.restarts.num_used(), 1);
  CoordinatorSettings settings = nodes(2, 3, 2);
  settings.first_generation = 2;
  settings.expected_nodes = 2;
  settings.terms.restarts = last->place.restarts;
  Job successor(settings);
  for (const int agent : {2, 3}) successor.join(agent);
  // Enough nodes are left, so the loss of agent 1 used no restart.
  ASSERT_TRUE(successor.take<StartOrder>(2));
  successor.fail(2, 2, 3);
  for (const int agent : {2, 3}) successor.stopped(agent, 2, 60s);
  EXPECT_THAT(successor.take<StartOrder>(3)->note, Says("coordinator.restarts", 2, 2));
  successor.fail(2, 3, 3);
  for (const int agent : {2, 3}) successor.stopped(agent, 3, 60s);
  EXPECT_THAT(successor.take<EndOrder>(3)->reason, Says("restarts.used_up", "2 restarts"));
}

TEST(Coordinator, a_take_over_with_too_few_nodes_is_a_restart) {
  CoordinatorSettings settings = nodes(2, 2, 2);
  settings.first_generation = 1;
  settings.expected_nodes = 1;
  Job successor(settings);
  successor.join(2);
  successor.join(3);
  const auto start = successor.take<StartOrder>(2);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->place.restarts.num_used(), 1);
  JobTerms terms = settings.terms;
  terms.restarts = start->place.restarts;
  EXPECT_TRUE(terms.may_go_on_with(1));
  terms.restarts.max_restarts = 1;
  EXPECT_FALSE(terms.may_go_on_with(1));
  EXPECT_TRUE(terms.may_go_on_with(2));
}

}  // namespace
}  // namespace paceline::launcher
