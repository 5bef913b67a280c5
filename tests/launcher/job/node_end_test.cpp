// How a job ended, as far as one of its nodes knows.

#include <csignal>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/launcher/job/run_tally.h"

namespace paceline::launcher {
namespace {

using Manner = NodeEnd::Manner;

const RankEnd kCulprit{.rank = 1, .exit_code = 3};

TEST(NodeEnd, is_what_the_coordinator_says) {
  const NodeEnd done{.order = EndOrder{}};
  EXPECT_EQ(done.manner(), Manner::kDone);
  EXPECT_EQ(done.exit_code(), 0);
  const NodeEnd failed{.order = EndOrder{.exit_code = 7, .cause = "rank 2 on host b: exit code 7"},
                       .culprit = kCulprit};
  EXPECT_EQ(failed.manner(), Manner::kFailed);
  EXPECT_EQ(failed.exit_code(), 7);
}

TEST(NodeEnd, without_the_coordinator_is_that_of_the_culprit) {
  const NodeEnd end{.culprit = kCulprit};
  EXPECT_EQ(end.manner(), Manner::kFailed);
  EXPECT_EQ(end.exit_code(), 3);
}

TEST(NodeEnd, by_a_signal_counts_less_than_a_failure_before_it) {
  const NodeEnd stopped{.order = EndOrder{.exit_code = 143}, .stop_signal = SIGINT};
  EXPECT_EQ(stopped.manner(), Manner::kStopped);
  EXPECT_EQ(stopped.exit_code(), 128 + SIGINT);
  const NodeEnd failed{.stop_signal = SIGINT, .culprit = kCulprit};
  EXPECT_EQ(failed.manner(), Manner::kFailed);
  EXPECT_EQ(failed.exit_code(), 3);
}

TEST(NodeEnd, as_agreed_needs_that_nothing_went_wrong_elsewhere) {
  const NodeEnd agreed{.order = EndOrder{.exit_code = kStoppedAsAgreed}, .ranks_agreed = true};
  EXPECT_EQ(agreed.manner(), Manner::kAgreed);
  EXPECT_EQ(agreed.exit_code(), kStoppedAsAgreed);
  const NodeEnd failed{.order = EndOrder{.exit_code = 1, .cause = "host b is lost"},
                       .ranks_agreed = true};
  EXPECT_EQ(failed.manner(), Manner::kFailed);
  EXPECT_EQ(failed.exit_code(), 1);
}

TEST(NodeEnd, of_an_abandoned_launcher_is_as_if_it_had_been_killed) {
  EXPECT_EQ(NodeEnd{.is_abandoned = true}.exit_code(), 128 + SIGKILL);
}

}  // namespace
}  // namespace paceline::launcher
