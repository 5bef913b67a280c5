// Several agents of one job on this machine, as if each one were on a host of its own.

#include <csignal>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include "paceline/engine/core/system/host.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/job_nodes.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;
using testing::Not;

using RunNodes = JobNodes;

TEST_F(RunNodes, meet_and_share_out_the_ranks) {
  const std::string script = "echo $P $PACELINE_STORE $MASTER_PORT";
  const auto first = start_with("", "2", script, {"--nproc-per-node", "2"});
  const auto second = start_with("", "2", script, {});
  const Outcome a = first->wait(), b = second->wait();
  EXPECT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(b.exit_code, 0) << b.err;
  const std::string all = a.out + b.out;
  for (const char* rank : {"] 0/3/0 127.0.0.1:", "] 1/3/0 127.0.0.1:", "] 2/3/0 127.0.0.1:"}) {
    EXPECT_THAT(all, HasSubstr(rank));
  }
}

TEST_F(RunNodes, given_node_ranks_hold_in_any_order_of_arrival) {
  const auto second = start_with("", "2", "echo $P $GROUP_RANK", {"--node-rank", "1"});
  const auto first = start_with("", "2", "echo $P $GROUP_RANK", {"--node-rank", "0"});
  EXPECT_EQ(second->wait().out, "[1] 1/2/0 1\n");
  EXPECT_EQ(first->wait().out, "[0] 0/2/0 0\n");
}

TEST_F(RunNodes, a_node_rank_that_is_taken_is_refused) {
  const auto first = start_first("3", "true", {"--node-rank", "0"});
  const auto one = start("3", "true", {"--node-rank", "1"});
  const auto twin = start("3", "true", {"--node-rank", "1"});
  // The one that arrives second is refused. The other one waits with the first node for node 2.
  const auto ends = open_pidfds({std::to_string(one->pid()), std::to_string(twin->pid())});
  pollfd entries[2] = {{ends[0].get(), POLLIN, 0}, {ends[1].get(), POLLIN, 0}};
  ASSERT_EQ(::poll(entries, 2, 20'000), 1) << "both were taken in";
  const auto last = start("3", "true", {"--node-rank", "2"});
  EXPECT_EQ(first->wait().exit_code, 0);
  last->wait();
  const Outcome a = one->wait(), b = twin->wait();
  EXPECT_TRUE((a.exit_code == 2) != (b.exit_code == 2)) << a.err << b.err;
  EXPECT_THAT(a.err + b.err, Says("nodes.rank_taken", 1));
}

TEST_F(RunNodes, different_nnodes_and_job_names_are_refused) {
  const auto first = start_first("2", "exec sleep 60");
  const auto wrong = start("3", "true");
  EXPECT_THAT(wrong->wait().err, Says("nodes.other_nnodes", 3, 3, 2, 2));
  const auto other = start("2", "true", {"--rdzv-id", "x"});
  const Outcome outcome = other->wait();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, Says("nodes.other_id", "x", "none"));
  first->send(SIGTERM);
  EXPECT_EQ(first->wait().exit_code, 143);
}

// The number of ranks is not yet known when a node starts.
TEST_F(RunNodes, a_fault_for_a_rank_that_never_was_is_named_at_the_end) {
  const std::vector<std::string> chaos = {"--chaos", "kill:rank=1@100s,kill:rank=7@0.01s"};
  const auto first = start_first("2", "sleep 0.2", chaos);
  const auto second = start("2", "sleep 0.2", chaos);
  for (const auto* node : {&first, &second}) {
    const Outcome outcome = (*node)->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, Says("chaos.ranks_never_there", 0, 0, "7\n"));
  }
}

TEST_F(RunNodes, another_secret_is_refused) {
  const auto first = start_first("2", "true");
  const std::string other = directory_.file("other");
  std::ofstream(other) << "another secret of sufficient length\n";
  chmod(other.c_str(), 0600);
  PacelineProcess stranger({"run", "--nnodes", "2", "--rdzv-conf", "is_host=false,join_timeout=2",
                            "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port_.port), "true"},
                           {{"PACELINE_SECRET_FILE", other}});
  const Outcome outcome = stranger.wait();
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, Says("nodes.secret_differs", fmt::format("127.0.0.1:{}", port_.port)));
  const auto second = start("2", "true");
  EXPECT_EQ(first->wait().exit_code, 0);
  EXPECT_EQ(second->wait().exit_code, 0);
}

TEST_F(RunNodes, a_job_whose_other_nodes_do_not_arrive_ends_and_names_what_is_missing) {
  const auto alone = start_with("is_host=true,join_timeout=0.3", "2", "true", {});
  Outcome outcome = alone->wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("nodes.too_few_came", "1 node", 0.3, "2 are"));
  const auto nobody = start_with("is_host=false,join_timeout=0.3", "2", "true", {});
  outcome = nobody->wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("nodes.not_found", fmt::format("127.0.0.1:{}", port_.port)));
}

TEST_F(RunNodes, a_rank_that_fails_on_one_node_ends_the_job_on_all_with_its_code) {
  const std::string script = "echo in; [ $RANK = 1 ] && exit 7; exec sleep 60";
  const auto first = start_first("2", script);
  const auto second = start("2", script);
  const Outcome a = first->wait(), b = second->wait();
  EXPECT_EQ(a.exit_code, 7) << a.err;
  EXPECT_EQ(b.exit_code, 7) << b.err;
  EXPECT_THAT(a.err, Says("run.ended_because", "rank 1 on host "));
  EXPECT_THAT(b.err, Says("run.first_failure", 1, "exit code 7"));
}

TEST_F(RunNodes, all_nodes_restart_together) {
  const std::string script = "echo $P; touch " + directory_.path() +
                             "/$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
                             "[ $RANK = 0 ] && exec sleep 60; until [ -e " +
                             directory_.file("0") + " ]; do sleep 0.01; done; exit 7";
  const auto first = start_first("2", script, {"--max-restarts", "1"});
  const auto second = start("2", script, {"--max-restarts", "1"});
  const Outcome a = first->wait(), b = second->wait();
  EXPECT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(b.exit_code, 0) << b.err;
  EXPECT_EQ(a.out, "[0] 0/2/0\n[0] 0/2/1\n");
  EXPECT_THAT(a.err, Says("run.restarts", 1, 1, 1, "rank 1 on host "));
}

// Whichever node reports first, the other one gets its order to stop long after its ranks have
// stopped.
TEST_F(RunNodes, nodes_whose_ranks_fail_at_the_same_moment_agree_on_the_next_store) {
  for (int round = 0; round < 20; ++round) {
    const std::string met = directory_.file(fmt::format("met{}.", round));
    const std::string script = fmt::format(
        "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then echo $PACELINE_STORE; exit; fi; "
        "touch {}$RANK; until [ -e {}0 ] && [ -e {}1 ]; do :; done; exit 3",
        met, met, met);
    const auto first = start_first("2", script, {"--max-restarts", "1"});
    const auto second = start("2", script, {"--max-restarts", "1"});
    const Outcome a = first->wait(), b = second->wait();
    ASSERT_EQ(a.exit_code, 0) << a.err;
    ASSERT_EQ(b.exit_code, 0) << b.err;
    ASSERT_EQ(a.out.substr(4), b.out.substr(4)) << "round " << round;
  }
}

// A script that prints $P and ends when the file exists.
std::string until(const std::string& file) {
  return "echo $P; until [ -e " + file + " ]; do sleep 0.02; done";
}

TEST_F(RunNodes, an_elastic_job_continues_without_a_killed_node_and_admits_a_new_one) {
  const std::string done = directory_.file("done");
  const auto first = start_first("1:2", until(done));
  auto second = start("1:2", until(done));
  first->wait_for_lines("[0] 0/2/0", 1);
  second->wait_for_lines("[1] 1/2/0", 1);
  second->send(SIGKILL);
  first->wait_for_lines("[0] 0/1/1", 1);
  const auto third = start("1:2", until(done));
  first->wait_for_lines("[0] 0/2/2", 1);
  third->wait_for_lines("[1] 1/2/2", 1);
  std::ofstream{done};
  EXPECT_EQ(third->wait().exit_code, 0);
  const Outcome outcome = first->wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, Says("run.generation_without_host", 1));
  EXPECT_THAT(outcome.err, Says("run.host_joins", 2, host_name(), "2 nodes"));
}

TEST_F(RunNodes, a_node_that_is_frozen_is_noticed_by_its_silence) {
  const std::string done = directory_.file("done");
  const std::string quick = "keep_alive_interval=0.2,keep_alive_max_attempt=5,is_host=";
  const auto first = start_with(quick + "true", "1:2", until(done), {});
  const auto second = start_with(quick + "false", "1:2", "echo agent $PPID; " + until(done), {});
  first->wait_for_lines("[0] 0/2/0", 1);
  const int agent = std::stoi(second->wait_for_lines("[1] agent ", 1)[0]);
  kill(agent, SIGSTOP);
  first->wait_for_lines("[0] 0/1/1", 1);
  std::ofstream{done};
  EXPECT_THAT(first->wait().err, Says("run.no_sign_of_life", 1));
  kill(agent, SIGKILL);
}

TEST_F(RunNodes, another_agent_takes_over_when_the_coordinators_is_killed) {
  const std::string done = directory_.file("done");
  const auto first = start_first("2:3", until(done));
  const auto second = start("2:3", until(done));
  const auto third = start("2:3", until(done));
  second->wait_for_lines("[", 1);
  third->wait_for_lines("[", 1);
  first->send(SIGKILL);
  for (const auto* node : {&second, &third}) {
    const auto lines = (*node)->wait_for_lines("[", 2);
    EXPECT_THAT(lines[1], HasSubstr("/2/1"));
  }
  std::ofstream{done};
  const Outcome b = second->wait(), c = third->wait();
  EXPECT_EQ(b.exit_code, 0) << b.err;
  EXPECT_EQ(c.exit_code, 0) << c.err;
  EXPECT_THAT(b.err, Says("nodes.coordinator_lost"));
}

TEST_F(RunNodes, nodes_that_continue_without_the_leading_node_say_so) {
  const std::string done = directory_.file("done");
  const auto first = start_first("1:2", until(done));
  const auto second = start("1:2", until(done));
  second->wait_for_lines("[1] ", 1);
  first->send(SIGTERM);
  first->wait();
  EXPECT_THAT(second->wait_for_lines("[0] ", 1).front(), HasSubstr("/1/"));
  std::ofstream{done};
  const Outcome outcome = second->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string address = fmt::format("127.0.0.1:{}", port_.port);
  EXPECT_THAT(outcome.err, Says("nodes.coordinator_lost", address));
  EXPECT_THAT(outcome.err, Not(HasSubstr(address + ": " + address)));
  EXPECT_THAT(outcome.err, Says("run.goes_on", "1 node\n"));
}

TEST_F(RunNodes, a_signal_to_one_node_that_all_ranks_heed_as_agreed_gives_85_everywhere) {
  const std::string script = "trap 'exit 85' TERM; echo in; while :; do sleep 0.02; done";
  const auto first = start_first("2", script, {"--max-restarts", "5"});
  const auto second = start("2", script, {"--max-restarts", "5"});
  first->wait_for_lines("[0] in", 1);
  second->wait_for_lines("[1] in", 1);
  second->send(SIGTERM);
  for (const auto* node : {&first, &second}) {
    const Outcome outcome = (*node)->wait();
    EXPECT_EQ(outcome.exit_code, 85) << outcome.err;
    EXPECT_THAT(outcome.err, Says("run.stopped_as_agreed", 85));
  }
}

TEST_F(RunNodes, a_node_that_is_told_to_stop_ends_a_job_of_fixed_size_everywhere) {
  const auto first = start_first("2", "echo in; exec sleep 60");
  const auto second = start("2", "echo in; exec sleep 60");
  second->wait_for_lines("[1] in", 1);
  second->send(SIGINT);
  EXPECT_EQ(second->wait().exit_code, 130);
  const Outcome outcome = first->wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, Says("run.stopped_by_a_node", "SIGINT"));
}

}  // namespace
}  // namespace paceline::launcher
