#include <csignal>
#include <map>

#include <gtest/gtest.h>

#include "paceline/launcher/diagnosis/failure_report.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kClose = 100us;

Failure failure(int signal, std::chrono::nanoseconds at, std::chrono::nanoseconds clock_error) {
  return {.signal = signal, .at = at, .clock_error = clock_error};
}

TEST(FailureOrder, the_moments_decide_where_they_are_further_apart_than_the_clocks_errors) {
  const Failure early = failure(0, 10s, kClose), late = failure(0, 10s + 1ms, kClose);
  EXPECT_TRUE(failed_before(early, late));
  EXPECT_FALSE(failed_before(late, early));
}

TEST(FailureOrder, within_the_errors_the_likelier_order_counts) {
  const Failure early = failure(0, 10s, 1s), late = failure(0, 10s + 200ms, 1s);
  EXPECT_TRUE(failed_before(early, late));
  EXPECT_FALSE(failed_before(late, early));
}

TEST(FailureOrder, whoever_notices_a_slow_death_and_exits_was_not_first) {
  const Failure exit_code = failure(0, 10s, kClose), killed = failure(SIGKILL, 10s + 300ms, kClose);
  EXPECT_TRUE(failed_before(killed, exit_code));
  EXPECT_FALSE(failed_before(exit_code, killed));
}

TEST(FailureOrder, a_death_long_after_an_exit_is_its_consequence) {
  const Failure exit_code = failure(0, 10s, kClose), killed = failure(SIGSEGV, 12s, kClose);
  EXPECT_FALSE(failed_before(killed, exit_code));
  EXPECT_TRUE(failed_before(exit_code, killed));
}

// An uncaught exception ends with an abort, and is often a consequence of another failure.
TEST(FailureOrder, an_abort_weighs_no_more_than_an_exit) {
  const Failure exit_code = failure(0, 10s, kClose), aborted = failure(SIGABRT, 10s + 5ms, kClose);
  EXPECT_FALSE(failed_before(aborted, exit_code));
  EXPECT_TRUE(failed_before(exit_code, aborted));
}

TEST(FailureOrder, without_moments_a_signal_weighs_more_and_then_the_first_report_counts) {
  EXPECT_TRUE(failed_before({.signal = SIGKILL}, {.signal = 0}));
  EXPECT_FALSE(failed_before({.signal = 0}, {.signal = SIGKILL}));
  EXPECT_FALSE(failed_before({.signal = 0}, {.signal = 0}));
  EXPECT_FALSE(failed_before({.signal = 0, .at = 1s}, {.signal = 0}));
}

TEST(FailureOrder, a_rank_says_whose_loss_made_it_fail) {
  EXPECT_EQ(
      accused_rank("  | epoch 1\n  |   what():  rank 0: rank 12 (box) of group world is gone: "
                   "its process ended without leaving the group; see the output of rank 12\n"),
      (AccusedRank{12, false}));
  EXPECT_EQ(accused_rank("see the output of rank 3"), std::nullopt);
  EXPECT_EQ(accused_rank("is gone; see the output of rank "), std::nullopt);
  EXPECT_EQ(accused_rank(""), std::nullopt);
}

TEST(FailureOrder, a_rank_says_who_ended_its_group) {
  const std::string aborted = "error: rank 0: group world was aborted by rank ";
  for (const auto& [words, rank] : std::map<std::string, int>{
           {"1 (box): rank 1: the loss is not finite\n", 1},
           {"1 (box): rank 2: the loss is not finite; this rank was in barrier #6\n", 2},
           {"1 (rank 5 of the world, box): rank 1 (rank 5 of the world): why\n", 5},
           {"1 (rank 5 of the world, box): rank 0 (rank 4 of the world): why\n", 4},
           {"3 (box): (its notice cannot be read)\n", 3}})
    EXPECT_EQ(accused_rank(aborted + words), (AccusedRank{rank, true})) << words;
  // A rank that was lost, and another rank that passed this on when it aborted its group.
  EXPECT_EQ(accused_rank(aborted + "1 (box): rank 1: rank 2 (box) of group world is gone: its "
                                   "process ended; see the output of rank 2\n"),
            (AccusedRank{2, false}));
  EXPECT_EQ(accused_rank("the attempt was aborted by rank none"), std::nullopt);
}

}  // namespace
}  // namespace paceline::launcher
