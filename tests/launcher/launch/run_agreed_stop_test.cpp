// Jobs whose ranks end with exit code 85: they stopped as agreed, and can be continued.

#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::Not;

std::vector<std::string> two_ranks(const std::string& script,
                                   std::vector<std::string> options = {}) {
  std::vector<std::string> arguments = {"run", "--nproc-per-node", "2", "--all-ranks"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"sh", "-c", script});
  return arguments;
}

void expect_stopped(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, kStoppedAsAgreed) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.stopped_as_agreed", 85));
  EXPECT_THAT(outcome.err, Not(Says("run.first_failure")));
  EXPECT_THAT(outcome.err, Not(Says("run.stopped")));
}

TEST(RunAgreedStop, exit_code_85_of_all_ranks_is_not_a_failure) {
  expect_stopped(run_paceline(two_ranks("[ $RANK = 0 ] || sleep 0.3; exit 85")));
}

TEST(RunAgreedStop, a_signal_to_the_launcher_after_which_all_exit_with_85_gives_85) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    PacelineProcess paceline(
        two_ranks("trap 'sleep 0.$RANK; exit 85' TERM USR1; echo ready; "
                  "while :; do sleep 0.02; done"));
    paceline.wait_for_lines("[0] ready", 1);
    paceline.wait_for_lines("[1] ready", 1);
    paceline.send(signal);
    expect_stopped(paceline.wait());
    EXPECT_TRUE(std::filesystem::is_empty(paceline.temporary()));
  }
}

TEST(RunAgreedStop, a_rank_that_does_not_arrive_in_time_makes_it_an_ordinary_stop) {
  PacelineProcess paceline(
      two_ranks("[ $RANK = 0 ] && trap 'exit 85' TERM || trap '' TERM; echo ready; "
                "while :; do sleep 0.02; done",
                {"--shutdown-timeout", "0.5"}));
  paceline.wait_for_lines("[0] ready", 1);
  paceline.wait_for_lines("[1] ready", 1);
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_THAT(outcome.err, Says("run.stopped", "SIGTERM"));
}

TEST(RunAgreedStop, a_real_failure_beside_it_is_reported_and_gives_the_exit_code) {
  const Outcome outcome = run_paceline(two_ranks("[ $RANK = 0 ] && exit 85; sleep 0.3; exit 3"));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "exit code 3"));
  EXPECT_THAT(outcome.err, Not(Says("run.stopped_as_agreed")));
}

}  // namespace
}  // namespace paceline::launcher
