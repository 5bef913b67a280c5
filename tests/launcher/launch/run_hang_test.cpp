// A job that hangs is reported with the place and the stack of every rank, and ended on request.

#include <csignal>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// The operation that rank 1 never enters.
const char* const kOperation = "all_reduce #2 (float32 x 1000, sum, group world)";

std::vector<std::string> hanging(std::vector<std::string> options,
                                 const std::string& how = "hangs") {
  std::vector<std::string> arguments = {"run", "--nproc-per-node", "3"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {RECORDED_PROGRAM, how});
  return arguments;
}

TEST(RunHang, is_reported_with_where_each_rank_is_and_nothing_is_ended) {
  PacelineProcess paceline(hanging({"--hang-timeout", "0.5", "--rdzv-id", "hang B/é"}));
  paceline.wait_for_lines("waiting", 1);
  EXPECT_TRUE(paceline.wait_for(Says("hang.nothing_ended")));
  std::this_thread::sleep_for(3s);  // it must not be reported again
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 143);  // the job ran until SIGTERM
  EXPECT_THAT(outcome.err, Says("records.never_entered", "rank 1", kOperation));
  EXPECT_THAT(outcome.err, Says("stacks.heading", "rank 1", "recorded_progra"));
  EXPECT_THAT(outcome.err, HasSubstr("nanosleep"));   // rank 1
  EXPECT_THAT(outcome.err, HasSubstr("all_reduce"));  // the others
  EXPECT_THAT(outcome.err, Says("hang.nothing_ended", "'hang B/é'"));
  EXPECT_THAT(lines_of(outcome.err), Contains(Says("run.no_progress")).Times(1));
}

TEST(RunHang, is_ended_when_that_is_asked) {
  PacelineProcess paceline(hanging({"--hang-timeout", "0.5", "--hang-action", "kill"}));
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "killed by SIGKILL"));
  EXPECT_THAT(outcome.err, Says("cause.ended_while_hanging"));
}

TEST(RunHang, a_stopped_rank_is_shown_and_the_job_continues_when_it_does) {
  PacelineProcess paceline(hanging({"--hang-timeout", "0.5", "--all-ranks"}, "stops"));
  const auto pids = paceline.wait_for_lines("[1] pid ", 1);
  EXPECT_TRUE(paceline.wait_for(Says("hang.nothing_ended")));
  kill(std::stoi(pids[0]), SIGCONT);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, Says("run.no_progress"));
  EXPECT_THAT(outcome.err, HasSubstr("raise"));
  EXPECT_THAT(outcome.err, Says("run.goes_on_by_itself"));
}

TEST(RunHang, a_job_that_moves_or_only_computes_is_none) {
  const Outcome moving = run_paceline(hanging({"--hang-timeout", "0.3"}, "works"));
  EXPECT_EQ(moving.exit_code, 0);
  EXPECT_THAT(moving.err, Not(Says("run.no_progress")));
  const Outcome computing = run_paceline(hanging({"--hang-timeout", "0.3"}, "computes"));
  EXPECT_EQ(computing.exit_code, 0);
  EXPECT_THAT(computing.err, Not(Says("run.no_progress")));
}

// A job of two ranks, or of `ranks`, that print their pids and then run `script`.
std::vector<std::string> standing_still(const std::string& script, std::vector<std::string> options,
                                        const std::string& ranks = "2") {
  std::vector<std::string> arguments = {"run", "--nproc-per-node", ranks, "--all-ranks"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"sh", "-c", "echo pid $$; " + script});
  return arguments;
}

std::vector<int> pids_of(PacelineProcess& paceline, int count) {
  std::vector<int> pids;
  for (int rank = 0; rank < count; ++rank) {
    const std::string start = fmt::format("[{}] pid ", rank);
    pids.push_back(std::stoi(paceline.wait_for_lines(start, 1)[0]));
  }
  return pids;
}

TEST(RunHang, a_rank_that_never_arrives_at_the_first_meeting_is_named_and_ended) {
  const Outcome outcome =
      run_paceline(standing_still("[ $RANK = 1 ] && sleep 60; exec " RECORDED_PROGRAM " ends",
                                  {"--hang-timeout", "1", "--hang-action", "kill"}));
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, Says("hang.not_arrived", "rank 1 has", "rank 0 is"));
  EXPECT_THAT(outcome.err, Says("stacks.heading", "rank 1", "sh"));
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "killed by SIGKILL"));
  EXPECT_THAT(outcome.err, Says("cause.ended_while_hanging"));
}

TEST(RunHang, stopped_ranks_are_all_reported_and_the_job_continues_when_they_do) {
  PacelineProcess paceline(
      standing_still("exec " RECORDED_PROGRAM " counts", {"--hang-timeout", "0.5"}));
  const auto pids = pids_of(paceline, 2);
  paceline.wait_for_lines("[0] waiting", 1);
  for (const int pid : pids) kill(pid, SIGSTOP);
  EXPECT_TRUE(paceline.wait_for(Says("hang.nothing_ended")));
  for (const int pid : pids) kill(pid, SIGCONT);
  EXPECT_TRUE(paceline.wait_for(Says("run.goes_on_by_itself")));
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_THAT(outcome.err, Says("run.no_progress"));
  EXPECT_THAT(outcome.err, HasSubstr(" stopped"));
  EXPECT_THAT(outcome.err, Says("hang.nothing_ended"));
  EXPECT_THAT(outcome.err, Says("run.goes_on_by_itself"));
}

TEST(RunHang, a_single_rank_that_is_stopped_is_ended_when_that_is_asked) {
  PacelineProcess paceline(standing_still("exec " RECORDED_PROGRAM " counts",
                                          {"--hang-timeout", "0.5", "--hang-action", "kill"}, "1"));
  const auto pids = pids_of(paceline, 1);
  paceline.wait_for_lines("[0] waiting", 1);
  kill(pids[0], SIGSTOP);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, Says("hang.ranks_stopped", "rank 0 is"));
  EXPECT_THAT(outcome.err, Says("cause.ended_while_hanging"));
}

TEST(RunHang, ranks_that_make_no_step_any_more_and_do_not_compute_are_said) {
  for (const std::string ranks : {"1", "2"}) {
    const Outcome outcome =
        run_paceline(standing_still("exec " RECORDED_PROGRAM " stalls",
                                    {"--hang-timeout", "0.5", "--hang-action", "kill"}, ranks));
    EXPECT_EQ(outcome.exit_code, 137) << ranks;
    EXPECT_THAT(outcome.err, Says("hang.idle"));
    EXPECT_THAT(outcome.err, HasSubstr("nanosleep"));
  }
}

TEST(RunHang, an_evaluation_on_all_ranks_is_none_and_neither_is_a_program_of_another_kind) {
  const Outcome evaluating =
      run_paceline(standing_still("exec " RECORDED_PROGRAM " evaluates", {"--hang-timeout", "2"}));
  EXPECT_EQ(evaluating.exit_code, 0);
  EXPECT_THAT(evaluating.err, Not(Says("run.no_progress")));
  const Outcome sleeping = run_paceline(
      standing_still("exec sleep 3", {"--hang-timeout", "0.3", "--hang-action", "kill"}));
  EXPECT_EQ(sleeping.exit_code, 0);
  EXPECT_THAT(sleeping.err, Not(Says("run.no_progress")));
}

TEST(RunHang, refuses_a_time_and_an_action_that_are_none) {
  const Outcome time = run_paceline({"run", "--hang-timeout", "soon", "true"});
  EXPECT_EQ(time.exit_code, 2);
  EXPECT_THAT(time.err, Says("cli.not_seconds", "--hang-timeout", "soon"));
  const Outcome action = run_paceline({"run", "--hang-action", "wait", "true"});
  EXPECT_EQ(action.exit_code, 2);
  EXPECT_THAT(action.err, Says("cli.value_refused", "--hang-action", "wait", "report or kill"));
}

TEST(Stacks, of_a_process_name_its_functions) {
  PacelineProcess sleeper({"60"}, {}, "/bin/sleep");
  const std::string pid = std::to_string(sleeper.pid());
  Outcome text;
  const auto sleeps = [&] {
    text = run_paceline({"stacks", "--pid", pid});
    return text.out.find("nanosleep") != std::string::npos;
  };
  EXPECT_TRUE(harness::wait_until(sleeps, Deadline::after(20s)));
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("(sleep):\n"));
  EXPECT_THAT(text.out, HasSubstr("nanosleep"));
  const auto json = nlohmann::json::parse(run_paceline({"stacks", "--json", "--pid", pid}).out);
  EXPECT_EQ(json["threads"][0]["thread"], sleeper.pid());
  EXPECT_GT(json["threads"][0]["frames"].size(), 1u);
}

TEST(Stacks, refuses_anything_but_a_process) {
  EXPECT_EQ(run_paceline({"stacks", "--pid", "x"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"stacks", "--pid", "0"}).exit_code, 2);
  const Outcome gone = run_paceline({"stacks", "--pid", "4194300"});
  EXPECT_EQ(gone.exit_code, 3);
  EXPECT_THAT(gone.err, Says("stacks.process_gone", 4194300));
  EXPECT_EQ(run_paceline({"stacks", "no-such-job"}).exit_code, 2);
}

TEST(Stacks, of_a_job_show_equal_ones_once) {
  PacelineProcess paceline(hanging({"--rdzv-id", "stacks-test"}));
  paceline.wait_for_lines("waiting", 1);
  Outcome outcome;
  const auto all_wait = [&] {
    outcome = run_paceline({"stacks", "stacks-test"});
    return testing::Value(outcome.out, Says("stacks.heading", "ranks 0, 2"));
  };
  EXPECT_TRUE(harness::wait_until(all_wait, Deadline::after(20s)));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out).at(0), Says("records.never_entered", "rank 1", kOperation));
  EXPECT_THAT(outcome.out, Says("stacks.heading", "rank 1"));
  paceline.send(SIGTERM);
  EXPECT_EQ(paceline.wait().exit_code, 143);
}

}  // namespace
}  // namespace paceline::launcher
