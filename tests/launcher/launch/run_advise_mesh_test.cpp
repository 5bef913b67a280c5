// `paceline advise --mesh` and `--memory` with programs that only pretend to train.

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Two blocks of a million parameters each. Two stages can divide the model, and up to four ranks a
// layer.
constexpr const char* kProfileText =
    R"({"format":"paceline profile","version":2,"program":"pretend","samples_per_step":8,"most_parts":4,
"shard_stages":[0,1,2,3],"schedules":["1f1b"],"layers":[
{"name":"a","is_block":true,"parameters":1000000,"forward":{"fixed_s":0,"sample_s":0.001},
"backward":{"fixed_s":0,"sample_s":0.002},"activation_bytes":1000000,"output_bytes":1000},
{"name":"b","is_block":true,"parameters":1000000,"forward":{"fixed_s":0,"sample_s":0.001},
"backward":{"fixed_s":0,"sample_s":0.002},"activation_bytes":1000000,"output_bytes":1000}]})";

// A program whose rank 0 writes the profile if it is asked for one; otherwise it reports steps of
// 12 ms.
constexpr const char* kPretendingGpt =
    "if [ -n \"$PACELINE_PROFILE\" ]; then "
    "[ $RANK != 0 ] || cat \"$0\" > \"$PACELINE_PROFILE\"; exit 0; fi; "
    "echo \"$@\" > \"$0.arguments\"; log=$PACELINE_STEP_LOG/rank-$(printf %03d $RANK).jsonl; "
    "while :; do "
    "echo '{\"event\":\"step\",\"samples\":4,\"seconds\":0.012,\"communication\":0}' >> $log; "
    "sleep 0.01; done";

class AdviseMesh : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(profile_) << kProfileText; }

  Outcome advise(std::vector<std::string> options, const char* script = kPretendingGpt) {
    options.insert(options.begin(), {"advise", "--seconds", "1"});
    options.insert(options.end(), {"--", "sh", "-c", script, profile_, "--batch-size", "3"});
    return run_paceline(options);
  }

  const FreshDirectory folder_;
  const std::string profile_ = folder_.file("profile");
};

TEST_F(AdviseMesh, plans_from_what_the_program_wrote) {
  const Outcome outcome = advise({"--mesh", "--ranks", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(Says("mesh.program", "pretend", 2000000, 2, "1 host x 2 ranks"),
                                 Says("mesh.global_batch", 8), HasSubstr("pp=1,dp=2,tp=1"),
                                 HasSubstr("pp=2,dp=1,tp=1"), HasSubstr("pp=1,dp=1,tp=2"),
                                 HasSubstr("<- best"), Says("mesh.step_spent")));
  EXPECT_THAT(outcome.out, Says("advise.command", "--nproc-per-node 2 sh -c"));
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("--global-batch-size 8"), Not(HasSubstr("--batch-size 3"))));
}

TEST_F(AdviseMesh, shows_predicted_beside_measured) {
  const Outcome outcome = advise({"--mesh", "--ranks", "2", "--check", "dp=1,tp=2", "--rows", "1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(Says("mesh.compared"), HasSubstr("12.0 ms"),
                                 Says("mesh.error", "step"), Says("mesh.error", "memory")));
  std::ifstream file(profile_ + ".arguments");
  std::string arguments;
  std::getline(file, arguments);
  EXPECT_THAT(arguments,
              AllOf(HasSubstr("--mesh pp=1,dp=1,tp=2"), HasSubstr("--global-batch-size 8"),
                    Not(HasSubstr("--batch-size 3"))));
}

TEST_F(AdviseMesh, machines_that_are_not_here) {
  const std::string kept = folder_.file("kept.json");
  const std::string machine = "hosts=12500,ranks=8,link=100Gbit,mtbf=5000h,stragglers=5%";
  const Outcome measured =
      advise({"--mesh", "--simulate", machine, "--global-batch", "100000", "--profile", kept});
  EXPECT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_THAT(measured.out, AllOf(HasSubstr("12500 hosts x 8 ranks, 100 Gbit/s"),
                                  Says("mesh.failures_take"), Says("mesh.stragglers_take", 100000),
                                  Says("advise.advice", "--mesh"), Not(Says("advise.command"))));
  // With the kept profile the program is not needed.
  const Outcome again =
      run_paceline({"advise", "--mesh", "--profile", kept, "--simulate", "hosts=4,ranks=2"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("4 hosts x 2 ranks"));
}

TEST_F(AdviseMesh, memory_of_each_stage) {
  const Outcome outcome = advise({"--memory", "--ranks", "4"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  // For each of the 2 million parameters a replica needs 16 bytes; if four ranks share the
  // optimizer's state, each needs 8 + 8 / 4.
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("DDP"), HasSubstr("stage 3"), HasSubstr("16 MB"),
                                 HasSubstr("4 MB"), Says("mesh.fits")));
  const Outcome small = advise({"--memory", "--simulate", "hosts=1,ranks=4,memory=100MB"});
  EXPECT_THAT(small.out, AllOf(Says("mesh.does_not_fit"), Says("mesh.memory_of_host", "100 MB")));
}

TEST_F(AdviseMesh, a_program_without_a_profile_is_told_what_to_do) {
  const Outcome ended = advise({"--mesh"}, "exit 0");
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, Says("mesh.ended_without_profile", "sh"));
  EXPECT_THAT(advise({"--mesh", "--patience", "1"}, "sleep 60").err,
              Says("mesh.no_profile_in_time", "sh", 1));
  EXPECT_THAT(advise({"--mesh"}, "echo 'no file data.bin' >&2; exit 3").err,
              AllOf(Says("mesh.program_failed", "sh", 3), HasSubstr("no file data.bin")));
  EXPECT_THAT(advise({"--mesh"}, "echo '{}' > $PACELINE_PROFILE").err,
              Says("mesh.foreign_profile"));
}

TEST_F(AdviseMesh, refuses_what_makes_no_sense) {
  EXPECT_THAT(run_paceline({"advise", "--mesh"}).err,
              Says("cli.no_program", "paceline advise --mesh"));
  EXPECT_THAT(advise({"--mesh", "--simulate", "hosts=2,speed=3"}).err,
              Says("mesh.unknown_property", "speed"));
  EXPECT_THAT(advise({"--mesh", "--simulate", "hosts=2", "--check", "1"}).err,
              Says("mesh.check_runs_here"));
  EXPECT_THAT(advise({"--memory", "--check", "1"}).err, Says("mesh.check_needs_mesh"));
  EXPECT_THAT(advise({"--mesh", "--ranks", "2", "--check", "dp=4"}).err,
              Says("mesh.not_a_mesh", "dp=4"));
  EXPECT_THAT(advise({"--mesh", "--ranks", "2", "--check", "many"}).err,
              Says("cli.not_whole", "--check", "many"));
  EXPECT_THAT(advise({"--mesh", "--ranks", "2", "--simulate", "hosts=2"}).err,
              Says("mesh.ranks_of_this_machine"));
  EXPECT_THAT(advise({"--simulate", "hosts=2"}).err, Says("mesh.options_need_mesh"));
  // Two blocks in four parts give one replica to 8 ranks at most, so 16 ranks need a batch of two.
  EXPECT_THAT(advise({"--mesh", "--simulate", "hosts=16,ranks=1", "--global-batch", "1"}).err,
              Says("mesh.batch_too_small", 16, 1));
}

}  // namespace
}  // namespace paceline::launcher
