// A rank that keeps the others waiting, in jobs on one host and on several.

#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/job_nodes.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AnyOf;
using testing::Contains;
using testing::Not;

// Watches a job for `watched` after it has printed `message`, if one is given. Returns its stderr.
std::string said_about(const std::string& how, const std::optional<harness::SaysMatcher>& message,
                       std::chrono::seconds watched) {
  PacelineProcess paceline(
      {"run", "--nproc-per-node", "3", "--straggler-after", "2", RECORDED_PROGRAM, how});
  paceline.wait_for_lines("waiting", 1);
  if (message) {
    EXPECT_TRUE(paceline.wait_for(*message));
  }
  std::this_thread::sleep_for(watched);
  paceline.send(SIGTERM);
  return paceline.wait().err;
}

TEST(RunStraggler, a_rank_that_sleeps_before_each_operation_is_reported_as_waiting_for_data) {
  // The rank must not be reported again.
  const std::string text = said_about("sleeps", Says("straggler.cause"), 4s);
  EXPECT_THAT(text, Says("straggler.comes_last", 1));
  EXPECT_THAT(text, Says("straggler.waits_for_data"));
  EXPECT_THAT(lines_of(text), Contains(Says("straggler.comes_last")).Times(1));
}

// Other programs on this machine may delay a rank, but then the report must say so.
TEST(RunStraggler, equal_ranks_have_none_of_their_own_making) {
  EXPECT_THAT(said_about("counts", {}, 8s),
              AnyOf(Not(Says("straggler.comes_last")), Says("straggler.other_load"),
                    Says("straggler.throttled")));
}

TEST(RunHostsStraggler, is_named_where_each_host_has_one_rank) {
  PacelineProcess paceline({"run", "--hosts", "localhost:1,127.0.0.1:1", "--straggler-after", "1.5",
                            RECORDED_PROGRAM, "sleeps"});
  EXPECT_TRUE(paceline.wait_for(Says("straggler.cause")));
  std::this_thread::sleep_for(4s);  // the other rank must not be named
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_THAT(outcome.err, Says("straggler.waits_least", "[127.0.0.1] ", 1));
  EXPECT_THAT(outcome.err, Says("straggler.cause"));
  EXPECT_THAT(outcome.err, Not(Says("straggler.waits_least", "", 0)));
}

class RunNodesStraggler : public JobNodes {};

TEST_F(RunNodesStraggler, is_named_where_each_host_has_one_rank) {
  const std::string program = std::string("exec ") + RECORDED_PROGRAM + " sleeps";
  const auto first = start_first("2", program, {"--node-rank", "0", "--straggler-after", "1.5"});
  const auto second = start("2", program, {"--node-rank", "1", "--straggler-after", "1.5"});
  EXPECT_TRUE(second->wait_for(Says("straggler.waits_least", "", 1)));
  std::this_thread::sleep_for(4s);  // the other rank must not be named
  first->send(SIGTERM);
  const Outcome a = first->wait(), b = second->wait();
  EXPECT_THAT(b.err, Says("straggler.waits_least", "", 1));
  EXPECT_THAT(a.err, Not(Says("straggler.waits_least", "", 0)));
}

}  // namespace
}  // namespace paceline::launcher
