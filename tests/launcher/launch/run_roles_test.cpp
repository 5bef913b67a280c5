// `paceline run --roles`: which rank gets which role, what is printed, and when the job ends.

#include <csignal>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/job_nodes.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::UnorderedElementsAre;

using Arguments = std::vector<std::string>;

Arguments roles(const Arguments& options, const std::string& script) {
  Arguments all = {"run", "--all-ranks"};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"sh", "-c", script});
  return all;
}

const std::string kPlace = "echo $RANK/$WORLD_SIZE $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE";
// The script of observers, which run until they are stopped.
const std::string kServe = "if [ $ROLE_NAME = observer ]; then exec sleep 1000; fi; ";

// Ranks that wait for each other through files in a folder.
class Meeting {
 public:
  // Both functions return commands for the script of a rank.
  std::string arrive() const { return fmt::format("touch {}/$RANK; ", folder_.path()); }
  std::string wait_for(const std::vector<int>& ranks) const {
    std::string script;
    for (const int rank : ranks) {
      script += fmt::format("until [ -e {}/{} ]; do sleep 0.02; done; ", folder_.path(), rank);
    }
    return script;
  }

 private:
  const FreshDirectory folder_;
};

TEST(RunRoles, ranks_are_dealt_in_order_and_named) {
  const Outcome outcome = run_paceline(roles({"--roles", "trainer=2,observer=3"}, kPlace));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out),
              UnorderedElementsAre("[trainer0] 0/5 trainer 0/2", "[trainer1] 1/5 trainer 1/2",
                                   "[observer0] 2/5 observer 0/3", "[observer1] 3/5 observer 1/3",
                                   "[observer2] 4/5 observer 2/3"));
}

TEST(RunRoles, may_come_from_the_variable_and_agree_with_the_number_of_ranks) {
  const auto arguments = [](const Arguments& options) {
    Arguments all = {"run"};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), {"sh", "-c", kPlace});
    return all;
  };
  EXPECT_EQ(run_paceline(arguments({}), {{"PET_ROLES", "a=1,b=1"}}).out, "0/2 a 0/1\n");
  EXPECT_EQ(run_paceline(arguments({"--roles", "a=1,b=1", "--nproc-per-node", "2"})).out,
            "0/2 a 0/1\n");
}

// All roles have one command. A shell chooses another program for each role.
TEST(RunRoles, a_shell_starts_another_program_for_each_role) {
  const Outcome outcome = run_paceline(
      roles({"--roles", "echo=1,printf=1"}, "exec $ROLE_NAME \"$ROLE_NAME $ROLE_RANK\n\""));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[echo0] echo 0"));
  EXPECT_THAT(outcome.out, HasSubstr("[printf0] printf 0"));
}

TEST(RunRoles, a_failure_is_reported_by_name_and_ends_every_role) {
  const Outcome outcome = run_paceline(
      roles({"--roles", "trainer=2,observer=1", "--until", "trainer"},
            kServe + "if [ $RANK = 1 ]; then echo oh >&2; exit 5; fi; exec sleep 1000"));
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_THAT(outcome.err, Says("run.role_failed_first", "trainer1", 1, "exit code 5"));
  EXPECT_THAT(outcome.err, Says("run.last_lines", "trainer1 (rank 1)"));
}

TEST(RunRoles, an_observer_that_fails_while_it_is_needed_ends_the_job) {
  const Outcome outcome =
      run_paceline(roles({"--roles", "trainer=1,observer=1", "--until", "trainer"},
                         "if [ $ROLE_NAME = observer ]; then exit 7; fi; exec sleep 1000"));
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.err, Says("run.role_failed_first", "observer0", 1, "exit code 7"));
}

TEST(RunRoles, a_restart_starts_every_role_again) {
  const Meeting meeting;
  const Outcome outcome = run_paceline(
      roles({"--roles", "trainer=1,observer=1", "--until", "trainer", "--max-restarts", "1"},
            "echo start $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || "
            "[ $ROLE_NAME = observer ] || exit 4; " +
                meeting.arrive() + kServe + meeting.wait_for({1})));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out),
              testing::IsSupersetOf({"[trainer0] start 0", "[trainer0] start 1"}));
  EXPECT_THAT(outcome.err, Says("run.restarts", 1, 1, 1, "trainer0 (rank 0) on host "));
}

struct RolesEnding {
  std::string name;
  // The scripts: of a trainer, once both observers have arrived; of an observer, with {} in the
  // place where it arrives.
  std::string trainer, observer;
  Arguments options;
  int exit_code;
  harness::SaysMatcher message;  // what the launcher prints
};

class RunRolesEnds : public testing::TestWithParam<RolesEnding> {};

TEST_P(RunRolesEnds, when_the_awaited_roles_have_ended) {
  const RolesEnding& row = GetParam();
  const Meeting meeting;
  Arguments options = {"--roles", "trainer=2,observer=2", "--until", "trainer"};
  options.insert(options.end(), row.options.begin(), row.options.end());
  const std::string script = fmt::format("if [ $ROLE_NAME = observer ]; then {}; else {}{}; fi",
                                         fmt::format(fmt::runtime(row.observer), meeting.arrive()),
                                         meeting.wait_for({2, 3}), row.trainer);
  const Outcome outcome = run_paceline(roles(options, script));
  EXPECT_EQ(outcome.exit_code, row.exit_code) << outcome.err;
  EXPECT_THAT(outcome.err, row.message);
  EXPECT_THAT(outcome.err, Not(Says("run.role_failed_first")));
}

const auto kStopping = Says("run.serving_ranks_stopped");
// A script for observers that handle SIGTERM.
std::string at_sigterm(const std::string& action) {
  return "trap '" + action + "' TERM; {}while :; do sleep 0.02; done";
}

INSTANTIATE_TEST_SUITE_P(
    Table, RunRolesEnds,
    testing::Values(
        RolesEnding{"observers_serve_for_ever", "true", "{}exec sleep 1000", {}, 0, kStopping},
        RolesEnding{"an_observer_has_ended_before",
                    "true",
                    "{}[ $ROLE_RANK = 0 ] || exec sleep 1000",
                    {},
                    0,
                    kStopping},
        RolesEnding{"observers_end_themselves", "true", at_sigterm("exit 0"), {}, 0, kStopping},
        RolesEnding{"observers_end_with_an_error", "true", at_sigterm("exit 9"), {}, 0, kStopping},
        RolesEnding{"observers_stop_as_agreed", "true", at_sigterm("exit 85"), {}, 0, kStopping},
        RolesEnding{"observers_do_not_end",
                    "true",
                    at_sigterm(""),
                    {"--shutdown-timeout", "0.5"},
                    0,
                    Says("run.killed_after_signal", "ranks 2, 3", 0.5, "SIGTERM", "were")},
        RolesEnding{"trainers_stop_as_agreed",
                    "exit 85",
                    "{}exec sleep 1000",
                    {},
                    85,
                    Says("run.stopped_as_agreed", 85)}),
    [](const auto& info) { return info.param.name; });

TEST(RunRoles, without_until_the_job_waits_for_every_role) {
  PacelineProcess paceline(
      roles({"--roles", "trainer=1,observer=1"}, "echo up; " + kServe + "true"));
  paceline.wait_for_lines("[observer0] up", 1);
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 143) << outcome.err;
  EXPECT_THAT(outcome.err, Not(kStopping));
}

TEST(RunRoles, a_dry_run_shows_each_ranks_role) {
  const Outcome outcome = run_paceline({"run", "--dry-run", "--roles", "a=1,b=2", "true"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("ROLE_NAME=b\n  ROLE_RANK=1\n  ROLE_WORLD_SIZE=2\n"));
  EXPECT_THAT(run_paceline({"run", "--print-config", "--roles", "a=1,b=2", "true"}).out,
              HasSubstr("a=1,b=2"));
}

TEST(RunRoles, hosts_without_slots_share_the_ranks) {
  const auto dry = [](const std::string& hosts) {
    return run_paceline({"run", "--dry-run", "--hosts", hosts, "--master-addr", "10.0.0.1",
                         "--ssh-command", "sh", "--roles", "a=2,b=4", "true"});
  };
  EXPECT_THAT(dry("x,y,z").out, Says("dry_run.hosts", 3, "6\n"));
  EXPECT_THAT(dry("x:4,y").out, Says("dry_run.hosts", 2, "6\n"));
  EXPECT_EQ(dry("x:6,y").exit_code, 2);
}

TEST(RunRoles, a_submitted_job_has_as_many_ranks_on_each_node) {
  const auto submit = [](const Arguments& options) {
    Arguments all = {"submit", "slurm", "--dry-run", "--nnodes", "2", "--roles", "a=2,b=4"};
    all.insert(all.end(), options.begin(), options.end());
    all.emplace_back("true");
    return run_paceline(all);
  };
  EXPECT_THAT(submit({}).out, HasSubstr("--nproc-per-node=3"));
  EXPECT_THAT(submit({}).out, HasSubstr("--roles"));
  EXPECT_EQ(submit({"--nproc-per-node", "2"}).exit_code, 2);
}

TEST(RunRoles, workers_join_and_call_each_other_by_the_launchers_names) {
  const Outcome joined = run_paceline(
      {"run", "--all-ranks", "--roles", "trainer=1,observer=2", CALLING_PROGRAM, "join"});
  EXPECT_EQ(joined.exit_code, 0) << joined.err;
  EXPECT_THAT(lines_of(joined.out), UnorderedElementsAre("[trainer0] trainer0 is a trainer",
                                                         "[observer0] observer0 is a observer",
                                                         "[observer1] observer1 is a observer"));
  const Outcome called = run_paceline({"run", "--all-ranks", "--roles", "trainer=2,observer=2",
                                       "--until", "trainer", CALLING_PROGRAM, "call", "2"});
  EXPECT_EQ(called.exit_code, 0) << called.err;
  EXPECT_THAT(
      lines_of(called.out),
      IsSupersetOf({"[trainer0] trainer0 heard observer0", "[trainer0] trainer0 heard observer1",
                    "[trainer1] trainer1 heard observer0", "[trainer1] trainer1 heard observer1"}));
}

using RunNodesRoles = JobNodes;

TEST_F(RunNodesRoles, are_dealt_over_nodes_and_end_together) {
  const Arguments options = {"--roles", "trainer=1,observer=3", "--until", "trainer"};
  const Meeting meeting;
  const std::string script =
      kPlace + "; " + meeting.arrive() + kServe + meeting.wait_for({1, 2, 3});
  Arguments on_0 = options, on_1 = options;
  on_0.insert(on_0.end(), {"--node-rank", "0"});
  on_1.insert(on_1.end(), {"--node-rank", "1"});
  const auto first = start_with("", "2", script, on_0), second = start_with("", "2", script, on_1);
  const Outcome a = first->wait(), b = second->wait();
  EXPECT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(b.exit_code, 0) << b.err;
  EXPECT_THAT(lines_of(a.out),
              UnorderedElementsAre("[trainer0] 0/4 trainer 0/1", "[observer0] 1/4 observer 0/3"));
  EXPECT_THAT(lines_of(b.out),
              UnorderedElementsAre("[observer1] 2/4 observer 1/3", "[observer2] 3/4 observer 2/3"));
  EXPECT_THAT(b.err, kStopping);
}

TEST_F(RunNodesRoles, need_ranks_that_add_up_on_all_nodes_together) {
  const Arguments options = {"--roles", "trainer=1,observer=3", "--nproc-per-node", "1"};
  const auto first = start_with("", "2", "true", options);
  const auto second = start_with("", "2", "true", options);
  for (const auto* node : {&first, &second}) {
    const Outcome outcome = (*node)->wait();
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err,
                Says("nodes.roles_do_not_add_up", "trainer=1,observer=3", "4 ranks", 2));
  }
}

// Pods may have a different command for each role.
TEST_F(RunNodesRoles, of_nodes_that_bring_one_each_may_serve_until_others_are_done) {
  const Meeting meeting;
  const auto trainer = start_with("", "2", meeting.wait_for({1}),
                                  {"--node-rank", "0", "--role", "trainer", "--until", "trainer"});
  const auto observer =
      start_with("", "2", meeting.arrive() + "exec sleep 1000",
                 {"--node-rank", "1", "--role", "observer", "--until", "trainer"});
  for (const auto* node : {&trainer, &observer}) {
    const Outcome outcome = (*node)->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
}

// In torchrun's form, each node has a role of its own.
TEST_F(RunNodesRoles, of_nodes_that_bring_one_each_are_numbered_by_role) {
  const auto first = start_with("", "2", kPlace,
                                {"--node-rank", "0", "--role", "trainer", "--nproc-per-node", "2"});
  const auto second = start_with("", "2", kPlace, {"--node-rank", "1", "--role", "observer"});
  EXPECT_THAT(lines_of(first->wait().out),
              UnorderedElementsAre("[trainer0] 0/3 trainer 0/2", "[trainer1] 1/3 trainer 1/2"));
  EXPECT_THAT(lines_of(second->wait().out), ElementsAre("[observer0] 2/3 observer 0/1"));
}

}  // namespace
}  // namespace paceline::launcher
