// `paceline advise` with programs that only pretend to train.

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/system/topology.h"

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Reports steps of a made-up length, so no time has to pass. Two ranks claim to be almost twice as
// fast.
constexpr const char* kPretend =
    "[ $WORLD_SIZE = 1 ] && s=0.19 || s=0.1; "
    "log=$PACELINE_STEP_LOG/rank-$(printf %03d $RANK).jsonl; "
    "echo '{\"event\":\"model\",\"parameter_bytes\":1000000}' >> $log; "
    "while :; do "
    "echo \"{\\\"event\\\":\\\"step\\\",\\\"samples\\\":$1,\\\"seconds\\\":$s,"
    "\\\"communication\\\":0.01}\" >> $log; sleep 0.01; done";

std::vector<std::string> advise(std::vector<std::string> options,
                                const std::string& seconds = "1") {
  options.insert(options.begin(), {"advise", "--seconds", seconds});
  options.insert(options.end(), {"--", "sh", "-c"});
  return options;
}

TEST(Advise, measures_and_recommends) {
  if (discover_topology().num_cores() < 2) GTEST_SKIP() << "one core";
  // Long enough that even a rank that gets little of the processor has reported enough steps.
  auto arguments = advise({"--global-batch", "64"}, "4");
  arguments.insert(arguments.end(), {kPretend, "pretend", "{batch}"});
  PacelineProcess paceline(arguments);
  const std::string temporary = paceline.temporary();
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("ranks  threads   samples/s"), Says("advise.data_parallel", 2),
                    Says("advise.gain", "1.90", "one rank on one core"),
                    Says("advise.ranks_wait", 10), Says("advise.command", "--nproc-per-node 2")));
  EXPECT_THAT(outcome.out, HasSubstr("pretend 32\n"));  // the batch of each of the two ranks
  EXPECT_THAT(outcome.out, Not(Says("advise.careful")));
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

TEST(Advise, a_program_that_ends_by_itself_has_its_memory_measured) {
  const std::string two_seconds =
      "log=$PACELINE_STEP_LOG/rank-$(printf %03d $RANK).jsonl; "
      "for i in $(seq 20); do echo '{\"event\":\"step\",\"samples\":8,\"seconds\":0.4}' >> $log; "
      "sleep 0.1; done";
  auto arguments = advise({}, "3600");
  arguments.push_back(two_seconds);
  const Outcome outcome = run_paceline(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::ContainsRegex("[1-9][0-9.]* [MK]B"));
  EXPECT_THAT(outcome.out, AllOf(Not(HasSubstr(" 0 KB")), Not(Says("advise.memory_not_seen"))));
}

TEST(Advise, a_program_that_fails_or_tells_nothing_is_said) {
  auto failing = advise({});
  failing.emplace_back("exit 3");
  const Outcome failed = run_paceline(failing);
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.out, Says("advise.program_failed", 3, "paceline: rank"));
  auto loud = advise({});
  loud.emplace_back("echo reading; echo 'error: no file data.bin' >&2; exit 1");
  EXPECT_THAT(run_paceline(loud).out, Says("advise.program_failed", 1, "no file data.bin\n"));
  auto silent = advise({"--patience", "1"});
  silent.emplace_back("sleep 60");
  EXPECT_THAT(run_paceline(silent).out, Says("advise.no_step", 1));
  auto short_one = advise({});
  short_one.emplace_back("exit 0");
  EXPECT_THAT(run_paceline(short_one).out, Says("advise.ended_early", 0));
}

TEST(Advise, a_model_that_runs_out_of_memory_gets_advice_without_a_command) {
  auto arguments = advise({});
  arguments.emplace_back(
      "echo '{\"event\":\"model\",\"parameter_bytes\":1000000000000000}' > "
      "$PACELINE_STEP_LOG/rank-000.jsonl; "
      "echo \"terminate called after throwing an instance of 'std::bad_alloc'\" >&2; kill -ABRT "
      "$$");
  const Outcome outcome = run_paceline(arguments);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(
      outcome.out,
      AllOf(Says("advise.share_among_machines"), Says("advise.why_failed", "1 rank", 134),
            Says("advise.parameters_too_large", "1000000.0 GB"), Not(Says("advise.command"))));
  EXPECT_THAT(outcome.err, Says("advise.nothing_measured"));
}

TEST(Advise, a_rank_that_tells_no_steps_is_said) {
  if (discover_topology().num_cores() < 2) GTEST_SKIP() << "one core";
  auto arguments = advise({});
  arguments.emplace_back("[ $RANK = 0 ] || exec sleep 60; " + std::string(kPretend));
  arguments.insert(arguments.end(), {"pretend", "64"});
  const Outcome outcome = run_paceline(arguments);
  EXPECT_THAT(outcome.out,
              AllOf(Says("advise.rank_without_steps", 0), Says("advise.stay_on_one_core")));
}

TEST(Advise, damaged_lines_are_not_counted) {
  auto arguments = advise({});
  arguments.emplace_back(
      "log=$PACELINE_STEP_LOG/rank-000.jsonl; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do "
      "printf 'garbage\\n[1]\\n{\"event\":\"step\",\"seconds\":\"x\"}\\n{\"event\":7}\\n' >> $log; "
      "done; printf '{\"event\":\"step\",\"seconds\":1' >> $log");
  EXPECT_THAT(run_paceline(arguments).out, Says("advise.ended_early", 0));
}

TEST(Advise, an_interrupt_leaves_nothing_behind) {
  const FreshDirectory directory;
  const std::string started = directory.file("started");
  auto arguments = advise({});
  arguments.emplace_back("echo $$ > " + started + ".new; mv " + started + ".new " + started +
                         "; sleep 60");
  PacelineProcess paceline(arguments);
  const std::string temporary = paceline.temporary();
  EXPECT_TRUE(harness::wait_until([&] { return std::filesystem::exists(started); },
                                  Deadline::after(std::chrono::seconds(20))));
  std::string pid;
  std::ifstream(started) >> pid;
  const auto ranks = open_pidfds({pid});
  paceline.send(SIGINT);
  EXPECT_EQ(paceline.wait().exit_code, 128 + SIGINT);
  EXPECT_TRUE(all_gone(ranks, std::chrono::seconds(5)));
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

TEST(Advise, refuses_what_makes_no_sense) {
  EXPECT_EQ(run_paceline({"advise"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"advise", "--", "no-such-program"}).exit_code, 127);
  EXPECT_THAT(run_paceline({"advise", "--seconds", "0", "--", "true"}).err,
              Says("cli.not_whole", "--seconds", 0));
  EXPECT_THAT(run_paceline({"advise", "--global-batch", "8", "--", "true"}).err,
              Says("advise.batch_without_place"));
  EXPECT_THAT(run_paceline({"advise", "--", "true", "{batch}"}).err,
              Says("advise.batch_without_place"));
}

}  // namespace
}  // namespace paceline::launcher
