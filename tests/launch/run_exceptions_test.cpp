// Every way in which a program can end, and what the launcher does then: the table of
// docs/launching.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/paceline_process.h"

namespace paceline::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Ending {
  const char* how;    // of ending_program
  int exit_code;      // of the job without restarts
  bool restarts;      // with some left
  bool stops_damage;  // not with --on-damage stop
};

const std::vector<Ending> kEndings = {
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

TEST(RunExceptions, the_rank_that_ends_is_blamed_and_gives_the_exit_code) {
  for (const Ending& ending : kEndings) {
    const Outcome outcome = run_program(ending.how, {});
    EXPECT_EQ(outcome.exit_code, ending.exit_code) << ending.how << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("rank 1 failed first")) << ending.how;
    EXPECT_THAT(outcome.err, HasSubstr("rank 0 ended because of it")) << ending.how;
    EXPECT_EQ(outcome.out, "generation 0\n") << ending.how;
  }
}

TEST(RunExceptions, a_restart_follows_unless_it_would_not_help) {
  for (const Ending& ending : kEndings) {
    const Outcome outcome = run_program(ending.how, {"--max-restarts", "5"});
    if (ending.restarts) {
      EXPECT_EQ(outcome.exit_code, 0) << ending.how << outcome.err;
      EXPECT_EQ(outcome.out, "generation 0\ngeneration 1\n") << ending.how;
    } else {
      EXPECT_EQ(outcome.exit_code, ending.exit_code) << ending.how << outcome.err;
      EXPECT_EQ(outcome.out, "generation 0\n") << ending.how;
      EXPECT_THAT(outcome.err, HasSubstr("an error of use (exit code 2) before any progress"));
    }
  }
}

TEST(RunExceptions, on_damage_stop_ends_the_job_of_a_damaged_rank_alone) {
  for (const Ending& ending : kEndings) {
    if (!ending.restarts) continue;
    const Outcome outcome = run_program(ending.how, {"--max-restarts", "5", "--on-damage", "stop"});
    EXPECT_EQ(outcome.exit_code, ending.stops_damage ? ending.exit_code : 0)
        << ending.how << outcome.err;
    EXPECT_EQ(outcome.out, ending.stops_damage ? "generation 0\n" : "generation 0\ngeneration 1\n")
        << ending.how;
  }
}

}  // namespace
}  // namespace paceline::launch
