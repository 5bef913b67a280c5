// Every way in which a program can end, and the reaction of the launcher, as in the table of
// docs/launching.md.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;

struct Ending {
  const char* how;    // the argument of ending_program
  int exit_code;      // the job's exit code without restarts
  bool restarts;      // the job is restarted, if a restart is left
  bool stops_damage;  // but not with --on-damage stop
};

const Ending kEndings[] = {
    {"invalid", 2, false, false},
    {"unsupported", 2, false, false},
    {"invalid-late", 2, false, false},
    {"2", 2, false, false},
    {"progress", 2, true, false},
    {"damaged", 86, true, true},
    {"damaged-late", 86, true, true},
    {"86", 86, true, true},
    {"timeout", 1, true, false},
    {"system", 1, true, false},
    {"corrupt", 1, true, false},
    {"exception", 1, true, false},
    {"1", 1, true, false},
    {"object", 134, true, false},
    {"abort", 134, true, false},
    {"segv", 139, true, false},
    {"kill", 137, true, false},
};

Outcome run_program(const std::string& how, std::vector<std::string> options) {
  std::vector<std::string> arguments = {"run", "--nproc-per-node", "2"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {ENDING_PROGRAM, how});
  return run_paceline(arguments);
}

class RunExceptions : public testing::TestWithParam<Ending> {};

TEST_P(RunExceptions, are_blamed_on_their_rank_and_give_the_exit_code) {
  const Ending& ending = GetParam();
  const Outcome outcome = run_program(ending.how, {});
  EXPECT_EQ(outcome.exit_code, ending.exit_code) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1));
  EXPECT_THAT(outcome.err, Says("run.followers", "rank 0"));
  EXPECT_EQ(outcome.out, "generation 0\n");
}

TEST_P(RunExceptions, are_followed_by_a_restart_unless_that_would_not_help) {
  const Ending& ending = GetParam();
  const Outcome outcome = run_program(ending.how, {"--max-restarts", "5"});
  EXPECT_EQ(outcome.exit_code, ending.restarts ? 0 : ending.exit_code) << outcome.err;
  EXPECT_EQ(outcome.out, ending.restarts ? "generation 0\ngeneration 1\n" : "generation 0\n");
  if (ending.restarts) return;
  EXPECT_THAT(outcome.err, Says("run.error_of_use", 2));
}

TEST_P(RunExceptions, end_the_job_with_on_damage_stop_if_they_are_damage) {
  const Ending& ending = GetParam();
  if (!ending.restarts) return;  // such an ending ends the job in any case
  const Outcome outcome = run_program(ending.how, {"--max-restarts", "5", "--on-damage", "stop"});
  const bool stops = ending.stops_damage;
  EXPECT_EQ(outcome.exit_code, stops ? ending.exit_code : 0) << outcome.err;
  EXPECT_EQ(outcome.out, stops ? "generation 0\n" : "generation 0\ngeneration 1\n");
}

std::string name_of(const testing::TestParamInfo<Ending>& info) {
  std::string name = info.param.how;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, RunExceptions, testing::ValuesIn(kEndings), name_of);

}  // namespace
}  // namespace paceline::launcher
