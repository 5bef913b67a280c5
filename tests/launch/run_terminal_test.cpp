// `paceline run` and the terminal it was started from: one that closes, and (with a real shell)
// jobs that go to the background and come back.

#include <csignal>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/hosts_fixture.h"
#include "tests/launch/paceline_process.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

// What a shell runs that starts the launcher with these signals ignored, as nohup and the
// background of a script do.
std::vector<std::string> ignoring(const std::string& signals, const std::string& arguments,
                                  const std::string& program) {
  return {"-c", fmt::format("trap '' {}; exec {} run {} sh -c '{}'", signals, PACELINE_COMMAND,
                            arguments, program)};
}

constexpr const char* kUntilTold = "grep SigIgn /proc/$$/status; echo ready; read end; echo done";

TEST(RunTerminal, signals_that_were_ignored_at_the_start_end_nobody) {
  PacelineProcess paceline(ignoring("HUP INT QUIT", "--nproc-per-node 2", kUntilTold), {},
                           "/bin/sh");
  EXPECT_THAT(paceline.wait_for_lines("SigIgn:", 1).front(), testing::EndsWith("7"));
  paceline.wait_for_lines("ready", 1);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) paceline.send(signal);
  paceline.write_stdin("end\n");
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("done\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("stopped by")));
}

TEST(RunTerminal, a_job_can_be_ended_though_sigterm_was_ignored) {
  PacelineProcess paceline(
      ignoring("TERM", "--shutdown-timeout 0.1", "echo ready; exec sleep 1000"), {}, "/bin/sh");
  paceline.wait_for_lines("ready", 1);
  paceline.send(SIGTERM);
  EXPECT_EQ(paceline.wait().exit_code, 128 + SIGTERM);
}

class RunTerminalHosts : public HostsFixture {};

TEST_F(RunTerminalHosts, a_closed_terminal_ends_no_host_that_nohup_started) {
  const std::string options =
      fmt::format("--all-ranks --hosts {} --ssh-command {}", hosts->list(1), hosts->ssh());
  PacelineProcess paceline(ignoring("HUP", options, until_done()), {}, "/bin/sh");
  paceline.wait_for_lines("[10.77.0.1:0]", 1);
  paceline.wait_for_lines("[10.77.0.2:1]", 1);
  paceline.send(SIGHUP);
  let_end();
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("stopped by")));
}

}  // namespace
}  // namespace paceline::launch
