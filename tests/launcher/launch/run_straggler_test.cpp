// A rank that keeps the others waiting, in jobs on one host and on several.

#include <chrono>
#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/launch/job_nodes.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// Stderr of a job that was watched for `watched` after it printed `words`.
std::string said_about(const std::string& how, const std::string& words,
                       std::chrono::seconds watched) {
  PacelineProcess paceline(
      {"run", "--nproc-per-node", "3", "--straggler-after", "2", RECORDED_PROGRAM, how});
  paceline.wait_for_lines("waiting", 1);
  EXPECT_TRUE(paceline.wait_for_words(words));
  std::this_thread::sleep_for(watched);
  paceline.send(SIGTERM);
  return paceline.wait().err;
}

TEST(RunStraggler, a_rank_that_sleeps_before_each_operation_is_reported_as_waiting_for_data) {
  const std::string text = said_about("sleeps", "probable cause: ", 4s);  // not again
  EXPECT_THAT(text, HasSubstr("paceline: rank 1 keeps the others waiting: it came last to "));
  EXPECT_THAT(text, HasSubstr("probable cause: it waits for something else, such as data"));
  EXPECT_EQ(text.find("keeps the others"), text.rfind("keeps the others"));
}

// Other programs on this machine may delay one of them, but then that is what is reported.
TEST(RunStraggler, equal_ranks_have_none_of_their_own_making) {
  EXPECT_THAT(said_about("counts", "", 8s),
              AnyOf(Not(HasSubstr("keeps the others waiting")),
                    HasSubstr("probable cause: other load on its cpus"),
                    HasSubstr("probable cause: throttled")));
}

TEST(RunHostsStraggler, is_named_where_each_host_has_one_rank) {
  PacelineProcess paceline({"run", "--hosts", "localhost:1,127.0.0.1:1", "--straggler-after", "1.5",
                            RECORDED_PROGRAM, "sleeps"});
  EXPECT_TRUE(paceline.wait_for_words("  probable cause: "));
  std::this_thread::sleep_for(4s);  // the other rank is not named
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_THAT(outcome.err, HasSubstr("[127.0.0.1] paceline: rank 1 keeps the others waiting: it "
                                     "spends "));
  EXPECT_THAT(outcome.err, HasSubstr("  probable cause: "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 0 keeps")));
}

class RunNodesStraggler : public JobNodes {};

TEST_F(RunNodesStraggler, is_named_where_each_host_has_one_rank) {
  const std::string program = std::string("exec ") + RECORDED_PROGRAM + " sleeps";
  const auto first = start_first("2", program, {"--node-rank", "0", "--straggler-after", "1.5"});
  const auto second = start("2", program, {"--node-rank", "1", "--straggler-after", "1.5"});
  EXPECT_TRUE(second->wait_for_words("keeps the others waiting: it spends "));
  std::this_thread::sleep_for(4s);  // the other rank is not named
  first->send(SIGTERM);
  const Outcome a = first->wait(), b = second->wait();
  EXPECT_THAT(b.err, HasSubstr("rank 1 keeps the others waiting: it spends "));
  EXPECT_THAT(a.err, Not(HasSubstr("rank 0 keeps")));
}

}  // namespace
}  // namespace paceline::launcher
