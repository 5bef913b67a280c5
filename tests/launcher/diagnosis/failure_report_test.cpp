#include "paceline/launcher/diagnosis/failure_report.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/launcher/output/rank_output.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;

TEST(FailureReport, names_rank_host_pid_cause_lines_and_log) {
  const RankEnd end{
      .rank = 3, .pid = 42, .signal = SIGKILL, .after = std::chrono::milliseconds(1250)};
  const std::string text =
      failure_report(end, {"trainer1 (rank 3)", "box", "  | last\n", "/logs/rank-003.log"});
  EXPECT_THAT(text,
              Says("failure.first", "trainer1 (rank 3)", "killed by SIGKILL", "box", 42, "1.2"));
  EXPECT_THAT(text, Says("failure.last_lines", "trainer1 (rank 3)", "  | last\n"));
  EXPECT_THAT(text, Says("failure.hint_killed"));
  EXPECT_THAT(text, Says("failure.log", "/logs/rank-003.log"));
  EXPECT_EQ(end.status(), 137);
}

TEST(FailureReport, prints_the_cause_in_place_of_the_hint_the_finished_ranks_and_the_stack) {
  const RankEnd end{.rank = 0, .pid = 42, .signal = SIGSEGV};
  FailureContext context;
  context.finished = {2, 1};
  EXPECT_THAT(failure_report(end, context), Says("failure.ended_before", "1, 2"));
  EXPECT_THAT(failure_report(end, context), Says("failure.hint_crashed"));
  context.stack = "  where (thread train):\n    #0  step\n";
  EXPECT_THAT(failure_report(end, context), HasSubstr("\n  where (thread train):\n    #0  step\n"));
  context.cause = "the moon";
  EXPECT_THAT(failure_report(end, context), Says("failure.cause", "the moon"));
  EXPECT_THAT(failure_report(end, context), testing::Not(Says("failure.hint")));
}

TEST(FailureReport, the_programs_own_message_is_printed_once) {
  const RankEnd end{.rank = 0, .pid = 42, .exit_code = 1};
  FailureContext context{
      .name = "rank 0", .last_lines = "  | epoch 1\n  | error: no file\n", .cause = "no file"};
  EXPECT_THAT(failure_report(end, context),
              testing::AllOf(Says("failure.cause", "no file"),
                             Says("failure.last_lines", "rank 0", "  | epoch 1\n")));
  EXPECT_THAT(failure_report(end, context), testing::Not(HasSubstr("error: ")));
  context.last_lines = "  | error: no file\n";
  EXPECT_THAT(failure_report(end, context), testing::EndsWith("\n  cause: no file\n"));
}

TEST(FailureReport, followers_take_one_line) {
  const RankEnd one{.rank = 4, .exit_code = 1}, two{.rank = 1, .exit_code = 1};
  const RankEnd killed{.rank = 0, .signal = SIGTERM};
  EXPECT_EQ(followers_summary({}), "");
  EXPECT_EQ(followers_summary({killed}),
            "paceline: rank 0 ended because of it (killed by SIGTERM)\n");
  EXPECT_EQ(
      followers_summary({one, two, killed}),
      "paceline: ranks 0, 1, 4 ended because of it (1, 4: exit code 1; 0: killed by SIGTERM)\n");
}

TEST(FailureReport, a_rank_that_ended_alike_at_the_same_time_may_have_had_its_own_reason) {
  using namespace std::chrono_literals;
  const std::chrono::steady_clock::time_point start;
  const RankEnd first{.exit_code = 127, .at = start}, soon{.exit_code = 127, .at = start + 10ms};
  EXPECT_TRUE(may_be_fellow(first, soon));
  EXPECT_FALSE(may_be_fellow(first, {.exit_code = 127, .at = start + 2s}));
  EXPECT_FALSE(may_be_fellow(first, {.exit_code = 1, .at = start}));
  EXPECT_FALSE(may_be_fellow({.signal = SIGKILL, .at = start}, {.signal = SIGKILL, .at = start}));
  EXPECT_EQ(fellows_summary({{.rank = 1, .exit_code = 127}}),
            "paceline: rank 1 also failed (exit code 127)\n");
  EXPECT_EQ(fellows_summary({}), "");
}

TEST(FailureReport, ranks_are_listed_as_ranges) {
  EXPECT_EQ(format_ranks({7, 3, 1, 0, 2}), "0-3, 7");
  EXPECT_EQ(format_ranks({1, 0}), "0, 1");
}

TEST(FailureReport, last_lines_are_the_last_whole_ones_made_harmless) {
  Pipe pipe = make_output_pipe();
  RankOutput output({}, {nullptr, nullptr}, "");
  output.set_pipe(0, std::move(pipe.read_end));
  const std::string text = "a\nb\n\x1b[2Jc\n\nd";
  ASSERT_EQ(write(pipe.write_end.get(), text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
  output.drain();
  EXPECT_EQ(output.last_lines(4), "  | b\n  | \\x1b[2Jc\n  | \n  | d\n");
  EXPECT_EQ(output.last_lines(100), "  | a\n  | b\n  | \\x1b[2Jc\n  | \n  | d\n");
}

}  // namespace
}  // namespace paceline::launcher
