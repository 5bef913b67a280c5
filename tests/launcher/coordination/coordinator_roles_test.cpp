// Roles of ranks: how the coordinator assigns them, and how a job ends if its servers serve until
// its trainers have ended.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

#include "tests/launcher/coordination/coordinated_job.h"

namespace paceline::launcher {
namespace {

using testing::HasSubstr;
using Job = CoordinatedJob;

const Roles kUntilTrainers = {{"trainer", 1}, {"observer", 3, true}};

CoordinatorSettings with_roles(const Roles& roles, int max_restarts = 0) {
  CoordinatorSettings settings = nodes(2, 2, max_restarts);
  settings.terms.roles = roles;
  return settings;
}

TEST(CoordinatorRoles, those_of_the_job_are_dealt_over_its_nodes) {
  Job job(with_roles(kUntilTrainers));
  job.join(1);
  job.join(2);
  for (const int agent : {1, 2}) {
    const auto start = job.take<StartOrder>(agent);
    ASSERT_TRUE(start);
    EXPECT_EQ(start->place.roles, kUntilTrainers);
  }
}

TEST(CoordinatorRoles, those_that_nodes_bring_are_in_the_order_of_nodes) {
  Job job(nodes(3, 3));
  for (const auto& [agent, role] :
       {std::pair(1, "trainer"), std::pair(2, "observer"), std::pair(3, "observer")}) {
    Joining joining = job.joining(agent);
    joining.role = role;
    job.join(agent, joining);
  }
  EXPECT_EQ(job.take<StartOrder>(3)->place.roles, (Roles{{"trainer", 2}, {"observer", 4}}));
}

TEST(CoordinatorRoles, those_that_nodes_bring_may_serve_as_well) {
  Job job(nodes(2, 2));
  for (const auto& [agent, role] : {std::pair(1, "trainer"), std::pair(2, "observer")}) {
    Joining joining = job.joining(agent);
    joining.role = role;
    joining.role_serves = agent == 2;
    job.join(agent, joining);
  }
  EXPECT_EQ(job.take<StartOrder>(2)->place.roles, (Roles{{"trainer", 2}, {"observer", 2, true}}));
}

TEST(CoordinatorRoles, a_job_that_waits_for_no_rank_does_not_start) {
  Job job(nodes(1, 1));
  Joining joining = job.joining(1);
  joining.role = "observer";
  joining.role_serves = true;
  job.join(1, joining);
  const auto end = job.take<EndOrder>(1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, kExitUsage);
  EXPECT_EQ(end->reason, "--until names no role of the ranks that would start (observer=2)");
}

TEST(CoordinatorRoles, counts_that_do_not_add_up_end_the_job_before_anything_starts) {
  Job job(with_roles({{"trainer", 2}, {"observer", 4}}));
  job.join(1);
  job.join(2);
  const auto end = job.take<EndOrder>(2);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, kExitUsage);
  EXPECT_EQ(end->reason,
            "--roles trainer=2,observer=4 has 6 ranks, but the nodes start 4: the counts must add "
            "up");
}

TEST(CoordinatorRoles, servers_end_once_no_node_has_a_trainer_left) {
  Job job(with_roles(kUntilTrainers));
  job.join(1);
  job.join(2);
  job.take<StartOrder>(1);
  job.take<StartOrder>(2);
  job.report(2, WorkDone{0});  // this node has only observers
  EXPECT_FALSE(job.take<WindUpOrder>(1) || job.take<WindUpOrder>(2));
  job.report(1, WorkDone{0});
  EXPECT_TRUE(job.take<WindUpOrder>(1));
  EXPECT_TRUE(job.take<WindUpOrder>(2));
  job.report(1, Finished{0});
  EXPECT_FALSE(job.over());
  job.report(2, Finished{0});
  EXPECT_EQ(job.take<EndOrder>(1)->exit_code, 0);
}

TEST(CoordinatorRoles, a_node_that_has_finished_has_no_trainer_left) {
  Job job(with_roles(kUntilTrainers));
  job.join(1);
  job.join(2);
  job.take<StartOrder>(1);
  job.report(1, WorkDone{0});
  job.report(1, Finished{0});
  job.report(2, WorkDone{0});
  EXPECT_FALSE(job.take<WindUpOrder>(1));
  EXPECT_TRUE(job.take<WindUpOrder>(2));
}

TEST(CoordinatorRoles, after_a_restart_the_trainers_are_waited_for_again) {
  Job job(with_roles(kUntilTrainers, 1));
  job.join(1);
  job.join(2);
  job.report(1, WorkDone{0});
  job.fail(2, 0, 1);
  job.stopped(1, 0);
  job.stopped(2, 0);
  job.pass(60s);
  EXPECT_EQ(job.take<StartOrder>(1)->place.roles, kUntilTrainers);
  job.report(2, WorkDone{1});
  job.report(1, WorkDone{0});  // a late report about the first generation
  EXPECT_FALSE(job.take<WindUpOrder>(2));
  job.report(1, WorkDone{1});
  EXPECT_TRUE(job.take<WindUpOrder>(2));
}

}  // namespace
}  // namespace paceline::launcher
