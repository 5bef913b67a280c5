// `paceline run --max-restarts` on one machine, and the files that it leaves behind.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::AnyOf;
using testing::Not;

std::vector<std::string> job(const std::string& script, std::vector<std::string> options) {
  std::vector<std::string> arguments = {"run"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"sh", "-c", "G=$TORCHELASTIC_RESTART_COUNT; " + script});
  return arguments;
}

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(RunRestart, all_ranks_start_again_after_a_failure) {
  const FreshDirectory logs, seen;
  const Outcome outcome = run_paceline(
      job("echo gen $G of $TORCHELASTIC_MAX_RESTARTS; [ $G = 2 ] && exit 0; cd " + seen.path() +
              "; touch $G.$RANK; [ $RANK != $G ] && exec sleep 60; "
              "until [ -e $G.$((1 - G)) ]; do sleep 0.01; done; exit $((G + 5))",
          {"--nproc-per-node", "2", "--max-restarts", "3", "--log-dir", logs.path()}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "gen 0 of 3\ngen 1 of 3\ngen 2 of 3\n");
  EXPECT_THAT(outcome.err, Says("run.first_failure", 0, "exit code 5"));
  EXPECT_THAT(outcome.err, Says("run.restarts", 1, 1, 3, "rank 0 on host "));
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "exit code 6"));
  EXPECT_EQ(content(logs.file("rank-001.log")),
            "gen 0 of 3\n=== paceline: generation 1 ===\ngen 1 of 3\n"
            "=== paceline: generation 2 ===\ngen 2 of 3\n");
}

// As when SLURM warns a job shortly before its end. The new ranks have no handler at first.
TEST(RunRestart, a_signal_that_arrives_before_a_restart_reaches_the_next_ranks) {
  const FreshDirectory directory;
  const std::string ready = directory.file("ready");
  PacelineProcess paceline(
      job("[ $G = 0 ] || { sleep 0.3; trap 'exit 85' USR1; while :; do sleep 0.02; done; }; "
          "[ $RANK = 1 ] && { trap '' TERM; trap 'exit 1' USR1; touch " +
              ready + "; while :; do sleep 0.02; done; }; until [ -e " + ready +
              " ]; do sleep 0.02; done; exit 3",
          {"--nproc-per-node", "2", "--max-restarts", "3"}));
  ASSERT_TRUE(paceline.wait_for(Says("run.first_failure", 0, "exit code 3")));
  paceline.send(SIGUSR1);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 85) << outcome.err;
}

TEST(RunRestart, the_exit_code_is_the_last_culprits_when_no_restart_is_left) {
  const Outcome outcome =
      run_paceline(job("[ $G = 1 ] && kill -SEGV $$; exit 3", {"--max-restarts", "1"}));
  EXPECT_EQ(outcome.exit_code, 139);
  EXPECT_THAT(outcome.err, Says("run.restarts_used_up", "1 restart", 3600, 1));
}

TEST(RunRestart, a_crash_loop_ends_with_its_reason) {
  // Another rank fails each time.
  const Outcome outcome = run_paceline(job("[ $RANK = $((G % 2)) ] && exit 4; exec sleep 60",
                                           {"--nproc-per-node", "2", "--max-restarts", "1000"}));
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, Says("run.crash_loop", "ended with exit code 4", 3));
  EXPECT_THAT(outcome.err, Not(Says("run.generation", 3)));
}

TEST(RunRestart, generations_have_stores_ports_and_secrets_of_their_own) {
  const Outcome outcome = run_paceline(
      job("echo $PACELINE_STORE; echo $MASTER_PORT; cat /proc/self/fd/$PACELINE_SECRET_FD; echo; "
          "exit $((1 - G))",
          {"--max-restarts", "1"}));
  EXPECT_EQ(outcome.exit_code, 0);
  std::istringstream lines(outcome.out);
  std::vector<std::string> seen;
  for (std::string line; std::getline(lines, line);) seen.push_back(line);
  ASSERT_EQ(seen.size(), 6u) << outcome.out;
  for (int i = 0; i < 3; ++i) EXPECT_NE(seen[i], seen[i + 3]);
}

TEST(RunRestart, a_signal_to_the_launcher_ends_the_job_and_starts_nothing) {
  PacelineProcess paceline(job("echo ready; exec sleep 60", {"--max-restarts", "5"}));
  paceline.wait_for_lines("ready", 1);
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_THAT(outcome.err, Not(Says("run.generation", 1)));
}

TEST(RunRestart, ranks_that_stop_as_agreed_are_not_started_again) {
  const Outcome outcome =
      run_paceline(job("echo gen $G; [ $G = 1 ] && exit 85; [ $RANK = 0 ] && exit 3; exec sleep 60",
                       {"--nproc-per-node", "2", "--max-restarts", "5"}));
  EXPECT_EQ(outcome.exit_code, 85) << outcome.err;
  EXPECT_EQ(outcome.out, "gen 0\ngen 1\n");
  EXPECT_THAT(outcome.err, Says("run.stopped_as_agreed", 85));
}

TEST(RunRestart, rank_0_reads_on_where_it_stopped) {
  PacelineProcess paceline(
      job("read line; echo got $line; exit $((1 - G))", {"--max-restarts", "1"}));
  paceline.write_stdin("one\n");
  paceline.wait_for_lines("got one", 1);
  paceline.write_stdin("two\n");
  paceline.wait_for_lines("got two", 1);
  EXPECT_EQ(paceline.wait().exit_code, 0);
}

TEST(RunRestart, logs_in_a_temporary_folder_stay_when_something_failed_on_the_way) {
  PacelineProcess paceline(job("exit $((1 - G))", {"--max-restarts", "1"}));
  EXPECT_EQ(paceline.wait().exit_code, 0);
  EXPECT_FALSE(std::filesystem::is_empty(paceline.temporary()));
}

TEST(RunRestart, chaos_kills_ranks_and_says_what_it_came_to) {
  const Outcome outcome = run_paceline(
      job("echo gen $G; [ $G = 2 ] && exit 0; exec sleep 60",
          {"--nproc-per-node", "2", "--max-restarts", "5", "--chaos", "kill:every=0.3s"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("chaos.struck", "kill"));
  EXPECT_THAT(outcome.err, AnyOf(Says("run.first_failure", 0, "killed by SIGKILL"),
                                 Says("run.first_failure", 1, "killed by SIGKILL")));
  EXPECT_THAT(outcome.err, Says("tally.generations", "3\n"));
  EXPECT_THAT(outcome.err, Says("chaos.faults", "2 (kill 2)", "0\n"));
}

// A script that writes a step gauge with five steps (telemetry/FORMAT.md), as a program in
// any language can.
const std::string kFiveSteps =
    R"({ printf 'PLSTEPS1\1\0\0\0\0\0\0\0\5'; head -c 47 /dev/zero; } > )"
    R"($PACELINE_FLIGHT_DIR/rank-00$RANK.steps; )";
// The same steps, made in half a second by a training that had made 3 steps before: word 6 is 4.
const std::string kFromStep3 =
    R"({ printf 'PLSTEPS1\1\0\0\0\0\0\0\0\5'; head -c 15 /dev/zero; )"
    R"(printf '\0\145\315\035'; head -c 12 /dev/zero; printf '\4'; head -c 15 /dev/zero; } > )"
    R"($PACELINE_FLIGHT_DIR/rank-00$RANK.steps; )";

TEST(RunRestart, a_run_with_restarts_ends_with_what_it_came_to) {
  const Outcome outcome =
      run_paceline(job(kFromStep3 + "exit $((1 - G))", {"--max-restarts", "10"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(Says("tally.begin"), Says("tally.generations", "2\n")));
  EXPECT_THAT(outcome.err, Says("tally.steps_lost", 10, 5));
  EXPECT_THAT(outcome.err, Says("tally.goodput_of_time"));
  EXPECT_THAT(run_paceline(job("true", {"--max-restarts", "10"})).err, Not(Says("tally.begin")));
}

TEST(RunRestart, the_cost_of_a_restart_is_told_apart_from_the_jobs_own_time) {
  const Outcome outcome = run_paceline(
      {"run", "--nproc-per-node", "2", "--max-restarts", "1", RECORDED_PROGRAM, "restarts"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("tally.steps_lost", 40, 10));
  EXPECT_THAT(outcome.err, testing::ContainsRegex("steps kept +[0-9.]+%"));
  EXPECT_THAT(outcome.err, testing::ContainsRegex("lost to restarts +[0-9.]+%"));
  EXPECT_THAT(outcome.err, testing::ContainsRegex("goodput +[0-9.]+% of a run without restarts"));
}

TEST(RunRestart, ranks_that_make_steps_are_in_no_crash_loop) {
  const Outcome outcome =
      run_paceline(job("[ $G = 4 ] && exit 0; " + kFiveSteps + "exit 4", {"--max-restarts", "10"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(RunRestart, steps_of_an_older_generation_are_not_taken_for_those_of_the_next) {
  const Outcome outcome =
      run_paceline(job("[ $G = 0 ] && " + kFiveSteps + "exit 4", {"--max-restarts", "10"}));
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.crash_loop", "ended with exit code 4", 3));
  EXPECT_THAT(outcome.err, Says("run.generation", 3));
}

TEST(RunRestart, chaos_is_the_cause_that_is_given_and_no_crash_loop) {
  const Outcome outcome = run_paceline({"run", "--nproc-per-node", "2", "--max-restarts", "5",
                                        "--chaos", "kill:every=0.3s", RECORDED_PROGRAM, "works"});
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, Says("cause.killed_by_chaos"));
  EXPECT_THAT(outcome.err, Not(Says("cause.killed_from_outside")));
  EXPECT_THAT(outcome.err, Not(Says("run.crash_loop")));
  EXPECT_THAT(outcome.err, Says("run.restarts_used_up", "5 restarts"));
}

TEST(RunRestart, chaos_strikes_at_a_step_of_a_rank) {
  const Outcome outcome = run_paceline(
      job("[ $G = 1 ] && exit 0; " + kFiveSteps + "exec sleep 60",
          {"--nproc-per-node", "2", "--max-restarts", "1", "--chaos", "kill:rank=1@step5"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("chaos.struck", "kill", 1));
  EXPECT_THAT(outcome.err, Says("tally.steps", 5));
}

TEST(RunRestart, chaos_at_a_step_says_that_a_program_reports_no_steps) {
  const Outcome outcome =
      run_paceline(job("sleep 0.3", {"--nproc-per-node", "2", "--chaos", "kill:rank=1@step5"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("chaos.no_steps", 0, 0, 5, 1));
}

// The ranks of the older generation take a second to end; the launcher is killed meanwhile.
TEST(RunRestart, kill_9_of_the_launcher_during_a_restart_leaves_no_process_behind) {
  for (const char* whom : {"supervisor", "agent"}) {
    const FreshDirectory seen;
    PacelineProcess paceline(job("trap '' TERM; cd " + seen.path() +
                                     "; echo pid $$; echo agent $PPID; [ $RANK = 0 ] || "
                                     "{ until [ -e both ]; do sleep 0.01; done; exit 3; }; "
                                     "sleep 1000 & echo pid $!; touch both; wait",
                                 {"--nproc-per-node", "2", "--max-restarts", "3",
                                  "--shutdown-timeout", "1", "--all-ranks"}));
    const auto pidfds = open_pidfds(paceline.wait_for_lines("[0] pid ", 2));
    const int agent = std::stoi(paceline.wait_for_lines("[0] agent ", 1)[0]);
    paceline.wait_for_lines("[1] pid ", 1);
    kill(std::string(whom) == "agent" ? agent : paceline.pid(), SIGKILL);
    EXPECT_TRUE(all_gone(pidfds, 10s)) << whom;
  }
}

}  // namespace
}  // namespace paceline::launcher
