#include "paceline/launcher/coordination/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;

const RestartPolicy::Moment kBegin{};
const GenerationEnd kUseful{{.end = "exit code 3"}, true, 60s};

TEST(RestartPolicy, without_restarts_there_is_no_reason_to_give) {
  RestartPolicy policy({.max_restarts = 0});
  const auto decision = policy.after(kUseful, kBegin);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.reason, "");
}

TEST(RestartPolicy, as_many_restarts_as_were_allowed) {
  RestartPolicy policy({.max_restarts = 2, .window = 0s});
  EXPECT_TRUE(policy.after(kUseful, kBegin).restart);
  EXPECT_TRUE(policy.after(kUseful, kBegin + 24h).restart);
  const auto last = policy.after(kUseful, kBegin + 48h);
  EXPECT_FALSE(last.restart);
  EXPECT_THAT(last.reason, Says("restarts.used_up", "2 restarts", "", 2));
  EXPECT_EQ(policy.budget(kBegin + 48h).num_restarts, 2);
}

TEST(RestartPolicy, restarts_before_the_window_do_not_count) {
  RestartPolicy policy({.max_restarts = 1, .window = 1h});
  EXPECT_TRUE(policy.after(kUseful, kBegin).restart);
  EXPECT_TRUE(policy.after(kUseful, kBegin + 1h).restart);
  const auto refused = policy.after(kUseful, kBegin + 1h + 59min);
  EXPECT_FALSE(refused.restart);
  EXPECT_THAT(refused.reason, Says("restarts.used_up_in_window", "1 restart", 3600, 1));
}

TEST(RestartPolicy, the_same_end_three_times_before_any_progress_is_a_crash_loop) {
  RestartPolicy policy({.max_restarts = 100});
  const GenerationEnd useless{{.end = "exit code 1"}, false, 10ms};
  EXPECT_TRUE(policy.after(useless, kBegin).restart);
  EXPECT_TRUE(policy.after(useless, kBegin).restart);
  const auto last = policy.after(useless, kBegin);
  EXPECT_FALSE(last.restart);
  EXPECT_THAT(last.reason, Says("restarts.crash_loop", "ended with exit code 1", 3));
}

TEST(RestartPolicy, damage_is_a_failure_like_others_unless_the_job_is_to_stop) {
  const GenerationEnd damage{{.end = "exit code 86", .exit_code = 86}, true, 60s};
  RestartPolicy restarts({.max_restarts = 1});
  EXPECT_TRUE(restarts.after(damage, kBegin).restart);
  RestartPolicy stops({.max_restarts = 100, .after_damage = false});
  EXPECT_TRUE(stops.after(kUseful, kBegin).restart);
  const auto decision = stops.after(damage, kBegin);
  EXPECT_FALSE(decision.restart);
  EXPECT_THAT(decision.reason, Says("restarts.damage"));
}

TEST(RestartPolicy, a_usage_error_before_any_progress_ends_the_job) {
  const GenerationEnd at_start{{.end = "exit code 2", .exit_code = 2}, false, 10ms};
  RestartPolicy policy({.max_restarts = 100});
  const auto decision = policy.after(at_start, kBegin);
  EXPECT_FALSE(decision.restart);
  EXPECT_THAT(decision.reason, Says("restarts.error_of_use", 2));
  EXPECT_TRUE(policy.after({at_start.failure, true, 60s}, kBegin).restart);
  GenerationEnd struck = at_start;
  struck.failure.on_purpose = true;
  EXPECT_TRUE(policy.after(struck, kBegin).restart);
}

TEST(RestartPolicy, a_crash_loop_of_kills_has_their_reason) {
  RestartPolicy policy({.max_restarts = 100});
  const GenerationEnd killed{{.end = "killed by SIGKILL", .reason = "out of memory"}, false, 10ms};
  policy.after(killed, kBegin);
  policy.after(killed, kBegin);
  EXPECT_THAT(policy.after(killed, kBegin).reason,
              Says("restarts.crash_loop", "were killed by SIGKILL (out of memory)", 3));
}

TEST(RestartPolicy, progress_or_another_cause_restarts_the_count) {
  RestartPolicy policy({.max_restarts = 100});
  const GenerationEnd one{{.end = "one"}, false, 10ms}, other{{.end = "other"}, false, 10ms};
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(policy.after(one, kBegin).restart);
    EXPECT_TRUE(policy.after(one, kBegin).restart);
    EXPECT_TRUE(policy.after(i % 2 == 0 ? kUseful : other, kBegin).restart);
  }
}

TEST(RestartPolicy, ends_on_purpose_are_not_a_crash_loop_and_take_no_pause_but_use_up_the_budget) {
  RestartPolicy policy({.max_restarts = 8});
  const GenerationEnd struck{{.end = "killed by SIGKILL", .on_purpose = true}, false, 10ms};
  const GenerationEnd useless{{.end = "killed by SIGKILL"}, false, 10ms};
  for (int i = 0; i < 3; ++i) {
    const auto decision = policy.after(struck, kBegin);
    EXPECT_TRUE(decision.restart);
    EXPECT_EQ(decision.pause, 0s);
  }
  EXPECT_TRUE(policy.after(useless, kBegin).restart);
  EXPECT_TRUE(policy.after(struck, kBegin).restart);
  EXPECT_TRUE(policy.after(useless, kBegin).restart);
  EXPECT_TRUE(policy.after(struck, kBegin).restart);
  EXPECT_THAT(policy.after(useless, kBegin).reason, Says("restarts.crash_loop"));
  EXPECT_TRUE(policy.after(struck, kBegin).restart);
  EXPECT_THAT(policy.after(struck, kBegin).reason, Says("restarts.used_up", "8 restarts"));
}

// Any kind of end counts, if its generation made progress.
TEST(RestartPolicy, progress_between_two_early_ends_restarts_the_count) {
  const GenerationEnd useless{{.end = "exit code 7"}, false, 10ms};
  for (const bool noted : {true, false}) {
    RestartPolicy policy({.max_restarts = 100});
    for (int i = 0; i < 5; ++i) {
      const auto decision = policy.after(useless, kBegin);
      EXPECT_TRUE(decision.restart) << decision.reason;
      EXPECT_EQ(decision.pause, 0s);
      if (noted) {
        policy.note_progress();
      } else {
        policy.after({{.kind = Failure::Kind::kHost}, true, 60s}, kBegin);
      }
    }
  }
}

TEST(RestartPolicy, young_deaths_are_followed_by_growing_pauses) {
  RestartPolicy policy({.max_restarts = 100});
  std::vector<std::chrono::nanoseconds> pauses;
  for (int i = 0; i < 9; ++i) {
    pauses.push_back(
        policy.after({{.end = i % 2 == 0 ? "one" : "other"}, false, 10ms}, kBegin).pause);
  }
  EXPECT_THAT(pauses, testing::ElementsAre(0s, 100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms, 5s, 5s));
  EXPECT_EQ(policy.after(kUseful, kBegin).pause, 0s);
  EXPECT_EQ(policy.after({{.end = "one"}, false, 10ms}, kBegin).pause, 0s);
}

// An agent that takes over from the coordinator does this. Clocks differ between hosts, so the ages
// of restarts are sent.
TEST(RestartPolicy, goes_on_with_a_budget_that_another_has_used) {
  RestartPolicy first({.max_restarts = 2, .window = 1h});
  EXPECT_TRUE(first.after(kUseful, kBegin).restart);
  EXPECT_TRUE(first.after(kUseful, kBegin + 30min).restart);
  const RestartBudget used = first.budget(kBegin + 40min);
  EXPECT_TRUE(used.is_used_up());
  const auto other_clock = kBegin + 1000h;
  RestartPolicy successor(used, other_clock);
  EXPECT_THAT(successor.after(kUseful, other_clock + 10min).reason,
              Says("restarts.used_up_in_window", "2 restarts", 3600, 2));
  // The first restart is an hour old.
  EXPECT_TRUE(successor.after(kUseful, other_clock + 20min).restart);
  EXPECT_EQ(successor.budget(other_clock + 20min).num_restarts, 3);
  EXPECT_TRUE(RestartPolicy(used.after(20min)).after(kUseful, kBegin).restart);
}

TEST(RestartPolicy, a_crash_loop_goes_on_under_another_coordinator) {
  const GenerationEnd useless{{.end = "exit code 1"}, false, 10ms};
  RestartPolicy first({.max_restarts = 100, .window = 0s});
  first.after(useless, kBegin);
  first.after(useless, kBegin);
  RestartPolicy successor(first.budget(kBegin));
  EXPECT_THAT(successor.after(useless, kBegin).reason, Says("restarts.crash_loop"));
}

}  // namespace
}  // namespace paceline::launcher
