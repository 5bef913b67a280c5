// A job that stands still: said with who is where and every rank's stack, ended when that is asked.

#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paceline/launch/hang_watch.h"

#include "tests/launch/paceline_process.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> hanging(std::vector<std::string> options,
                                 const std::string& how = "hangs") {
  std::vector<std::string> arguments = {"run", "--nproc-per-node", "3"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {RECORDED_PROGRAM, how});
  return arguments;
}

TEST(RunHang, is_said_with_who_is_where_and_nothing_is_ended) {
  PacelineProcess paceline(hanging({"--hang-timeout", "0.5"}));
  paceline.wait_for_lines("waiting", 1);
  std::this_thread::sleep_for(4s);
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 143);  // it ran until then
  EXPECT_THAT(outcome.err, HasSubstr("paceline: no progress for "));
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 never entered all_reduce #2"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 1, thread recorded_progra:\n"));
  EXPECT_THAT(outcome.err, HasSubstr("nanosleep"));   // rank 1
  EXPECT_THAT(outcome.err, HasSubstr("all_reduce"));  // the others
  EXPECT_THAT(outcome.err, HasSubstr("nothing is ended"));
  EXPECT_EQ(outcome.err.find("no progress"), outcome.err.rfind("no progress"));
}

TEST(RunHang, is_ended_when_that_is_asked) {
  PacelineProcess paceline(hanging({"--hang-timeout", "0.5", "--hang-action", "kill"}));
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 failed first: killed by SIGKILL"));
  EXPECT_THAT(outcome.err, HasSubstr("cause: ended by paceline after "));
}

TEST(RunHang, a_stopped_rank_is_shown_and_the_job_goes_on_when_it_does) {
  PacelineProcess paceline(hanging({"--hang-timeout", "0.5", "--all-ranks"}, "stops"));
  const auto pids = paceline.wait_for_lines("[1] pid ", 1);
  std::this_thread::sleep_for(3s);
  kill(std::stoi(pids[0]), SIGCONT);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("no progress for "));
  EXPECT_THAT(outcome.err, HasSubstr("raise"));
  EXPECT_THAT(outcome.err, HasSubstr("paceline: the job goes on, after "));
}

TEST(RunHang, a_job_that_moves_or_only_computes_is_none) {
  const Outcome moving = run_paceline(hanging({"--hang-timeout", "0.3"}, "works"));
  EXPECT_EQ(moving.exit_code, 0);
  EXPECT_THAT(moving.err, Not(HasSubstr("no progress")));
  const Outcome computing = run_paceline(hanging({"--hang-timeout", "0.3"}, "computes"));
  EXPECT_EQ(computing.exit_code, 0);
  EXPECT_THAT(computing.err, Not(HasSubstr("no progress")));
}

TEST(RunHang, refuses_a_time_and_an_action_that_are_none) {
  const Outcome time = run_paceline({"run", "--hang-timeout", "soon", "true"});
  EXPECT_EQ(time.exit_code, 2);
  EXPECT_THAT(time.err, HasSubstr("--hang-timeout: 'soon'"));
  const Outcome action = run_paceline({"run", "--hang-action", "wait", "true"});
  EXPECT_EQ(action.exit_code, 2);
  EXPECT_THAT(action.err, HasSubstr("--hang-action: 'wait' is not report or kill"));
}

TEST(HangWatch, without_records_there_is_no_hang) {
  const FreshDirectory directory;
  HangWatch watch(1s, directory.path());
  const auto now = HangWatch::Clock::now();
  EXPECT_FALSE(watch.look({0, 1}, now));
  EXPECT_FALSE(watch.look({0, 1}, now + 1h));
  EXPECT_FALSE(watch.take_recovery());
}

TEST(Stacks, of_a_process_name_its_functions) {
  PacelineProcess sleeper({"60"}, {}, "/bin/sleep");
  std::this_thread::sleep_for(300ms);
  const std::string pid = std::to_string(sleeper.pid());
  const Outcome text = run_paceline({"stacks", "--pid", pid});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("(sleep):\n"));
  EXPECT_THAT(text.out, HasSubstr("nanosleep"));
  const auto json = nlohmann::json::parse(run_paceline({"stacks", "--json", "--pid", pid}).out);
  EXPECT_EQ(json["threads"][0]["thread"], sleeper.pid());
  EXPECT_GT(json["threads"][0]["frames"].size(), 1u);
}

TEST(Stacks, refuses_what_is_no_process) {
  EXPECT_EQ(run_paceline({"stacks", "--pid", "x"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"stacks", "--pid", "0"}).exit_code, 2);
  const Outcome gone = run_paceline({"stacks", "--pid", "4194300"});
  EXPECT_EQ(gone.exit_code, 3);
  EXPECT_THAT(gone.err, HasSubstr("process 4194300 is gone"));
  EXPECT_EQ(run_paceline({"stacks", "no-such-job"}).exit_code, 2);
}

TEST(Stacks, of_a_job_show_equal_ones_once) {
  PacelineProcess paceline(hanging({"--rdzv-id", "stacks-test"}));
  paceline.wait_for_lines("waiting", 1);
  std::this_thread::sleep_for(500ms);
  const Outcome outcome = run_paceline({"stacks", "stacks-test"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::StartsWith("rank 1 never entered all_reduce #2"));
  EXPECT_THAT(outcome.out, HasSubstr("ranks 0, 2, thread"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 1, thread"));
  paceline.send(SIGTERM);
  EXPECT_EQ(paceline.wait().exit_code, 143);
}

}  // namespace
}  // namespace paceline::launch
