// Agents of a job that are stopped for a while and then continue.

#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/system/host.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/job_nodes.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;
using testing::Not;

class RunNodesFreeze : public JobNodes {
 protected:
  // Starts two nodes, freezes the coordinator, and waits until the other node has continued alone.
  void freeze_the_coordinator(const std::string& nnodes, const std::string& conf) {
    const std::string common = "keep_alive_interval=0.2,keep_alive_max_attempt=5" + conf;
    const std::string script =
        "echo agent $PPID; echo $P; until [ -e " + done_ + " ]; do sleep 0.02; done";
    first_ = start_with(common + ",is_host=true", nnodes, script, {});
    second_ = start_with(common + ",is_host=false", nnodes, script, {});
    agent_ = std::stoi(first_->wait_for_lines("[0] agent ", 1)[0]);
    second_->wait_for_lines("[1] 1/2/0", 1);
    kill(agent_, SIGSTOP);
    second_->wait_for_lines("[0] 0/1/1", 1);
  }

  const std::string done_ = directory_.file("done");
  Node first_, second_;
  pid_t agent_ = -1;
};

TEST_F(RunNodesFreeze, a_coordinator_that_thaws_joins_the_one_that_took_over) {
  freeze_the_coordinator("1:2", "");
  kill(agent_, SIGCONT);
  second_->wait_for_lines("[0] 0/2/2", 1);
  first_->wait_for_lines("[1] 1/2/2", 1);
  std::ofstream{done_};
  const Outcome a = first_->wait(), b = second_->wait();
  EXPECT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(b.exit_code, 0) << b.err;
  EXPECT_THAT(a.out, Not(HasSubstr("0/1/1")));  // it never continued alone
  EXPECT_THAT(a.err, Says("nodes.coordinator_here_lost", host_name(), 1));
}

// The other nodes may have finished the job meanwhile.
TEST_F(RunNodesFreeze, a_coordinator_that_thaws_and_finds_no_node_does_not_begin_again) {
  freeze_the_coordinator("1:2", ",join_timeout=8");
  second_->send(SIGKILL);
  second_->wait();
  kill(agent_, SIGCONT);
  const Outcome outcome = first_->wait();
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("0/1/1")));
  EXPECT_THAT(outcome.err, Says("nodes.lost_all"));
}

}  // namespace
}  // namespace paceline::launcher
