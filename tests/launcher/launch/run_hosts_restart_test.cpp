// `paceline run --hosts` with restarts and MIN:MAX, on network namespaces in place of hosts.

#include <csignal>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/hosts_fixture.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class RunHostsRestart : public HostsFixture {};

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

TEST_F(RunHostsRestart, all_ranks_of_all_hosts_start_again_after_a_failure) {
  const std::string met = hosts->directory().file("met");
  const auto job = start({"--max-restarts", "3"},
                         "echo $P; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
                         "[ $RANK = 0 ] && { touch " +
                             met +
                             "; exec sleep 60; }; "
                             "until [ -e " +
                             met + " ]; do sleep 0.01; done; exit 7");
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* line : {"[10.77.0.1:0] 0/2/0\n", "[10.77.0.1:0] 0/2/1\n",
                           "[10.77.0.2:1] 1/2/0\n", "[10.77.0.2:1] 1/2/1\n"}) {
    EXPECT_EQ(count(outcome.out, line), 1U) << outcome.out;
  }
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "exit code 7"));
  EXPECT_THAT(
      lines_of(outcome.err),
      Contains(Says("run.restarts", 1, 1, 3, "rank 1 on host 10.77.0.2: exit code 7")).Times(1));
}

TEST_F(RunHostsRestart, ranks_form_a_group_in_each_generation) {
  const auto job = start({"--max-restarts", "3"},
                         "exec $([ $TORCHELASTIC_RESTART_COUNT = 0 ] && echo " RECORDED_PROGRAM
                         " dies || echo " RECORDED_PROGRAM " ends)");
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[10.77.0.1:0] waiting"));
  EXPECT_THAT(outcome.err,
              Says("run.restarts", 1, 1, 3, "rank 1 on host 10.77.0.2: killed by SIGKILL"));
}

TEST_F(RunHostsRestart, the_exit_code_is_the_last_culprits_when_no_restart_is_left) {
  const auto job = start({"--max-restarts", "1"}, "[ $RANK = 1 ] && exit 7; exec sleep 60");
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 7) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.restarts_used_up", "1 restart", 3600, 1));
  EXPECT_THAT(outcome.err, Not(Says("hosts.going_on")));
}

TEST_F(RunHostsRestart, one_host_alone_restarts_too) {
  Arguments arguments = {"run",
                         "--hosts",
                         "10.77.0.2:2",
                         "--ssh-command",
                         hosts->ssh(),
                         "--max-restarts",
                         "2",
                         "--all-ranks",
                         "sh",
                         "-c",
                         "echo $TORCHELASTIC_RESTART_COUNT; exit $((1 - "
                         "TORCHELASTIC_RESTART_COUNT))"};
  const Outcome outcome = run_paceline(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[10.77.0.2:0] 1\n"), HasSubstr("[10.77.0.2:1] 1\n")));
}

TEST_F(RunHostsRestart, an_elastic_job_continues_without_a_lost_host) {
  const auto job = start({"--nnodes", "1:2", "--host-retries", "0"}, until_done(), ssh_with_pid());
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  cut(1);
  wait_for(*job, 0, "0/1/1");
  let_end();
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(Says("hosts.connection_lost", "host 10.77.0.2"), Says("hosts.going_on", 1, 2),
                    Says("run.generation_without_host", 1, "10.77.0.2")));
}

TEST_F(RunHostsRestart, an_elastic_job_continues_without_its_first_host) {
  const auto job = start({"--nnodes", "1:2", "--host-retries", "0"}, until_done(), ssh_with_pid());
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  cut(0);
  wait_for(*job, 1, "0/1/1");
  let_end();
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("hosts.going_on", 1, 2));
}

// The launcher still reaches the third host, but the first one does not. When the job is over, the
// launcher stops that host.
TEST_F(RunHostsRestart, a_host_that_only_the_launcher_reaches_does_not_hold_up_the_end) {
  hosts.reset();
  hosts.emplace(3);
  const auto job = start({"--nnodes", "2:3", "--shutdown-timeout", "1"}, until_done());
  for (int host = 0; host < 3; ++host) wait_for(*job, host, fmt::format("{}/3/0", host));
  hosts->unplug(2);
  wait_for(*job, 0, "0/2/1");
  let_end();
  const Outcome outcome = job->wait(60s);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.no_sign_of_life", 3));
}

// Silence alone does not end such a job for 30 s. Once a rank has failed, the job ends within
// seconds.
TEST_F(RunHostsRestart, a_silent_host_does_not_hold_up_the_end_of_a_job_without_restarts) {
  const auto job = start({"--shutdown-timeout", "1"},
                         "echo $P; [ $RANK = 1 ] && exec sleep 60; until [ -s " +
                             hosts->directory().file("done") + " ]; do sleep 0.02; done; exit 5");
  for (int host = 0; host < 2; ++host) wait_for(*job, host, fmt::format("{}/2/0", host));
  hosts->unplug(1);
  let_end();
  const Outcome outcome = job->wait(60s);
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_LT(outcome.seconds.count(), 25);
  EXPECT_THAT(outcome.err,
              AllOf(Says("run.first_failure", 0, "exit code 5"), Says("run.host_lost", "10.77.0.2"),
                    Says("run.no_sign_of_life", 3)));
}

TEST_F(RunHostsRestart, a_job_with_too_few_hosts_left_ends_and_leaves_nothing) {
  const auto job = start({"--max-restarts", "3", "--host-retries", "0"},
                         "trap '' TERM; echo ready $$; while :; do sleep 1; done", ssh_with_pid());
  std::vector<std::string> pids;
  for (int host = 0; host < 2; ++host) {
    const auto line = fmt::format("[{}:{}] ready ", NetworkHosts::name(host), host);
    pids.push_back(job->wait_for_lines(line, 1).front());
  }
  const auto ranks = open_pidfds(pids);
  cut(1);
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err,
              AllOf(Says("hosts.connection_lost", "host 10.77.0.2"), Not(Says("hosts.going_on"))));
  EXPECT_TRUE(all_gone(ranks, 10s));
}

TEST_F(RunHostsRestart, an_elastic_job_begins_without_hosts_that_do_not_answer) {
  const Arguments options = {"--nnodes", "1:2",         "--start-timeout",
                             "1",        "--rdzv-conf", "last_call_timeout=0.2"};
  const auto silent =
      start(options, "echo $P", hosts->ssh_after("[ $1 = 10.77.0.2 ] && exec sleep 60"));
  const Outcome late = silent->wait();
  EXPECT_EQ(late.exit_code, 0) << late.err;
  EXPECT_EQ(late.out, "[10.77.0.1:0] 0/1/0\n");
  EXPECT_THAT(late.err, AllOf(Says("hosts.begins_without", "host 10.77.0.2", 1),
                              Says("hosts.going_on", 1, 2)));
  const auto refusing =
      start(options, "echo $P",
            hosts->ssh_after("[ $1 = 10.77.0.2 ] && { echo 'Permission denied' >&2; exit 255; }"));
  const Outcome refused = refusing->wait();
  EXPECT_EQ(refused.exit_code, 0) << refused.err;
  EXPECT_THAT(refused.err, AllOf(Says("hosts.unreachable", "host 10.77.0.2"),
                                 HasSubstr("  | Permission denied"), Says("hosts.going_on", 1, 2)));
}

// The job meets on the first host.
TEST_F(RunHostsRestart, nothing_begins_without_the_first_host) {
  const auto job = start({"--nnodes", "1:2", "--start-timeout", "1"}, "echo $P",
                         hosts->ssh_after("[ $1 = 10.77.0.1 ] && exec sleep 60"));
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, Says("hosts.no_answer", 1, "10.77.0.1"));
}

TEST_F(RunHostsRestart, a_signal_ends_the_job_on_every_host_and_starts_nothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto job = start({"--nnodes", "1:2", "--max-restarts", "5"},
                           "echo ready $WORLD_SIZE $$; exec sleep 60");
    std::vector<std::string> pids;
    for (int host = 0; host < 2; ++host) {
      const auto line = fmt::format("[{}:{}] ready 2 ", NetworkHosts::name(host), host);
      pids.push_back(job->wait_for_lines(line, 1).front());
    }
    const auto ranks = open_pidfds(pids);
    job->send(signal);
    const Outcome outcome = job->wait();
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.err;
    EXPECT_EQ(count(outcome.out, "ready 2"), 2U);
    // The first host may have begun alone, if the second one was late; it must not do so at the
    // end.
    const auto alone = outcome.out.rfind("ready 1");
    EXPECT_TRUE(alone == std::string::npos || alone < outcome.out.find("ready 2")) << outcome.out;
    EXPECT_TRUE(all_gone(ranks, 5s));
  }
}

TEST_F(RunHostsRestart, an_agreed_stop_of_all_hosts_is_neither_a_failure_nor_a_reason_to_restart) {
  const auto job =
      start({"--max-restarts", "5"}, "trap 'exit 85' USR1; echo $P; while :; do sleep 0.02; done");
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  job->send(SIGUSR1);
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 85) << outcome.err;
  EXPECT_THAT(outcome.err, Not(Says("run.generation", 1)));
}

TEST_F(RunHostsRestart, rank_0_reads_on_where_it_stopped) {
  const auto job =
      start({"--max-restarts", "1"},
            "[ $RANK = 1 ] && { read line && echo read; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || "
            "exec sleep 60; exit 0; }; read line; echo got $line; "
            "exit $((1 - TORCHELASTIC_RESTART_COUNT))");
  job->write_stdin("one\n");
  job->wait_for_lines("[10.77.0.1:0] got one", 1);
  job->write_stdin("two\n");
  job->wait_for_lines("[10.77.0.1:0] got two", 1);
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("read")));
}

TEST_F(RunHostsRestart, nothing_survives_a_launcher_that_is_killed_during_a_restart) {
  const std::string both = hosts->directory().file("both");
  const auto job = start({"--max-restarts", "5", "--shutdown-timeout", "5"},
                         "trap '' TERM; echo ready $$; [ $RANK = 0 ] || { until [ -s " + both +
                             " ]; do sleep 0.01; done; exit 3; }; while :; do sleep 1; done");
  std::vector<std::string> pids;
  for (int host = 0; host < 2; ++host) {
    const auto line = fmt::format("[{}:{}] ready ", NetworkHosts::name(host), host);
    pids.push_back(job->wait_for_lines(line, 1).front());
  }
  const auto ranks = open_pidfds(pids);
  hosts->directory().write("both", "x");
  job->send(SIGKILL);
  EXPECT_TRUE(all_gone(ranks, 10s));
}

}  // namespace
}  // namespace paceline::launcher
