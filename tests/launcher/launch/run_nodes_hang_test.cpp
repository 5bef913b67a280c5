// A job on several hosts hangs because of a rank on a host where no rank waits. That rank is named,
// its stack is shown, and on request it is ended; the rank that waits is not. The hosts are agents
// on this machine.

#include <chrono>
#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/system/host.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/job_nodes.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const auto kNamed =
    Says("records.others_wait", "rank 1", "all_reduce #2 (float32 x 1000, sum, group world)",
         "broadcast #1", "rank 0 has");

Outcome stand_still_on_hosts(std::vector<std::string> options) {
  std::vector<std::string> arguments = {"run", "--hosts", "localhost:1,127.0.0.1:1",
                                        "--hang-timeout", "1"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {RECORDED_PROGRAM, "hangs"});
  PacelineProcess paceline(arguments);
  return paceline.wait();
}

TEST(RunHostsHang, names_and_ends_the_missing_rank) {
  const Outcome outcome = stand_still_on_hosts({"--hang-action", "kill"});
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, kNamed);
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "killed by SIGKILL"));
  EXPECT_THAT(outcome.err, Says("cause.ended_while_hanging"));
  EXPECT_THAT(outcome.err, Not(Says("run.first_failure", 0, "killed by SIGKILL")));
  EXPECT_THAT(lines_of(outcome.err), Contains(Says("run.no_progress")).Times(1));
}

TEST(RunHostsHang, shows_the_stacks_of_both_sides_and_ends_nothing) {
  PacelineProcess paceline({"run", "--hosts", "localhost:1,127.0.0.1:1", "--hang-timeout", "1",
                            RECORDED_PROGRAM, "hangs"});
  EXPECT_TRUE(paceline.wait_for(Says("hang.nothing_ended")));
  std::this_thread::sleep_for(std::chrono::seconds(3));  // it must not be reported again
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 143);  // the job ran until SIGTERM
  EXPECT_THAT(outcome.err, kNamed);
  EXPECT_THAT(outcome.err, Says("stacks.heading", "[127.0.0.1]   rank 1", "recorded_progra"));
  EXPECT_THAT(outcome.err, HasSubstr("nanosleep"));  // rank 1
  EXPECT_THAT(outcome.err, Says("stacks.heading", "[localhost]   rank 0", "recorded_progra"));
  EXPECT_THAT(outcome.err, HasSubstr("all_reduce"));  // rank 0
  EXPECT_THAT(outcome.err, Says("hang.nothing_ended"));
  EXPECT_THAT(outcome.err, Not(Says("hang.nothing_ended", "none")));
  EXPECT_THAT(lines_of(outcome.err), Contains(Says("run.no_progress")).Times(1));
}

// The hosts' agents report the hang to the coordinator; it is shown once.
TEST(RunHostsHang, is_the_same_in_a_job_that_continues) {
  const Outcome outcome = stand_still_on_hosts({"--hang-action", "kill", "--max-restarts", "1"});
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, kNamed);
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "killed by SIGKILL"));
  EXPECT_THAT(outcome.err, Says("run.restarts", 1, 1, 1));
  EXPECT_THAT(outcome.err, Not(Says("run.first_failure", 0, "killed by SIGKILL")));
}

class RunNodesHang : public JobNodes {
 protected:
  static std::vector<std::string> options(int node, std::vector<std::string> more) {
    std::vector<std::string> all = {"--node-rank", std::to_string(node), "--hang-timeout", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void start_both(const std::vector<std::string>& more, const std::string& how = "hangs") {
    const std::string program = std::string("exec ") + RECORDED_PROGRAM + " " + how;
    first_ = start_first("2", program, options(0, more));
    second_ = start("2", program, options(1, more));
  }
  Node first_, second_;
};

TEST_F(RunNodesHang, names_and_ends_the_missing_rank) {
  start_both({"--hang-action", "kill"});
  const Outcome a = first_->wait(), b = second_->wait();
  EXPECT_EQ(a.exit_code, 137) << a.err;
  EXPECT_EQ(b.exit_code, 137) << b.err;
  EXPECT_THAT(a.err, kNamed);
  EXPECT_THAT(b.err, kNamed);
  EXPECT_THAT(b.err, Says("run.first_failure", 1, "killed by SIGKILL"));
  EXPECT_THAT(a.err, Not(Says("run.first_failure", 0, "killed by SIGKILL")));
  EXPECT_THAT(a.err, Says("run.ended_because", "rank 1 on host "));
}

TEST_F(RunNodesHang, restarts_because_of_the_missing_rank) {
  start_both({"--hang-action", "kill", "--max-restarts", "1"});
  const Outcome a = first_->wait(), b = second_->wait();
  EXPECT_EQ(a.exit_code, 137) << a.err;
  EXPECT_THAT(a.err, Says("run.restarts", 1, 1, 1, "rank 1 on host "));
  EXPECT_THAT(a.err, Not(Says("run.first_failure", 0, "killed by SIGKILL")));
  EXPECT_THAT(b.err, Says("cause.ended_while_hanging"));
}

// A stopped launcher does not answer, so no rank is blamed.
TEST_F(RunNodesHang, ends_no_rank_when_a_host_does_not_report_where_its_ranks_are) {
  const std::string program = std::string("echo agent $PPID; exec ") + RECORDED_PROGRAM + " hangs";
  first_ = start_with("is_host=true,keep_alive_interval=100", "2", program,
                      options(0, {"--hang-action", "kill"}));
  second_ = start_with("is_host=false,keep_alive_interval=100", "2", program,
                       options(1, {"--hang-action", "kill"}));
  const int agent = std::stoi(second_->wait_for_lines("[1] agent ", 1)[0]);
  first_->wait_for_lines("[0] waiting", 1);
  kill(agent, SIGSTOP);
  EXPECT_TRUE(first_->wait_for(Says("hang.blocker_unknown")));
  kill(agent, SIGCONT);
  first_->send(SIGTERM);
  const Outcome a = first_->wait(), b = second_->wait();
  EXPECT_THAT(a.err, Says("hang.without_records", 1, 2, "has"));
  EXPECT_THAT(a.err, Says("hang.host_silent", host_name(), 2));
  EXPECT_THAT(a.err, Says("hang.blocker_unknown"));
  EXPECT_THAT(a.err, Not(Says("run.first_failure", 0, "killed by SIGKILL")));
  EXPECT_THAT(b.err, Not(Says("run.first_failure", 0, "killed by SIGKILL")));
}

TEST_F(RunNodesHang, is_none_while_the_job_moves_or_only_computes) {
  for (const std::string how : {"works", "computes"}) {
    start_both({}, how);
    const Outcome a = first_->wait(), b = second_->wait();
    EXPECT_EQ(a.exit_code, 0) << a.err;
    EXPECT_THAT(a.err + b.err, Not(Says("run.no_progress")));
  }
}

}  // namespace
}  // namespace paceline::launcher
