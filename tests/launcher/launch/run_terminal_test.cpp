// `paceline run` and the terminal that it was started from: a terminal that closes, and (with a
// real shell) jobs that go to the background and come back.

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/job_timeline/trace_reader.h"
#include "tests/launcher/launch/hosts_fixture.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;
using testing::Not;

// A script that starts the launcher with these signals ignored, like nohup, or a script that starts
// a command in the background.
std::vector<std::string> ignoring(const std::string& signals, const std::string& arguments,
                                  const std::string& program) {
  return {"-c", fmt::format("trap '' {}; exec {} run {} sh -c '{}'", signals, PACELINE_COMMAND,
                            arguments, program)};
}

constexpr const char* kUntilTold = "grep SigIgn /proc/$$/status; echo ready; read end; echo done";

TEST(RunTerminal, signals_that_were_ignored_at_the_start_end_no_rank) {
  PacelineProcess paceline(ignoring("HUP INT QUIT", "--nproc-per-node 2", kUntilTold), {},
                           "/bin/sh");
  EXPECT_THAT(paceline.wait_for_lines("SigIgn:", 1).front(), testing::EndsWith("7"));
  paceline.wait_for_lines("ready", 1);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) paceline.send(signal);
  paceline.write_stdin("end\n");
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("done\n"));
  EXPECT_THAT(outcome.err, Not(Says("run.stopped")));
}

TEST(RunTerminal, a_job_can_be_ended_though_sigterm_was_ignored) {
  PacelineProcess paceline(
      ignoring("TERM", "--shutdown-timeout 0.1", "echo ready; exec sleep 1000"), {}, "/bin/sh");
  paceline.wait_for_lines("ready", 1);
  paceline.send(SIGTERM);
  EXPECT_EQ(paceline.wait().exit_code, 128 + SIGTERM);
}

// An interactive shell on its own terminal.
class Shell {
 public:
  Shell() {
    int terminal = -1;
    pid_ = forkpty(&terminal, nullptr, nullptr, nullptr);
    if (pid_ < 0) throw system_error("forkpty");
    if (pid_ == 0) {
      for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTSTP}) std::signal(signal, SIG_DFL);
      setenv("TMPDIR", temporary_.path().c_str(), 1);
      execl("/bin/bash", "bash", "--norc", "--noprofile", "--noediting", "-i", nullptr);
      _exit(99);
    }
    terminal_.reset(terminal);
    type("PS1='rea''dy> '; stty -echo; set +o history\n");
    wait_for("ready> ");
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;
  ~Shell() {
    terminal_.reset();  // closes the terminal
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void type(const std::string& text) {
    if (write(terminal_.get(), text.data(), text.size()) < 0) throw system_error("write");
  }
  // Waits for this text after the text of the last call. Returns the text between the two. Throws
  // Error(kTimeout).
  std::string wait_for(const std::string& text) {
    const Deadline deadline = Deadline::after(30s);
    for (;;) {
      const auto at = text_.find(text);
      if (at != std::string::npos) {
        const std::string before = text_.substr(0, at);
        text_.erase(0, at + text.size());
        return before;
      }
      char buffer[4096];
      const bool ready = wait_ready(terminal_.get(), POLLIN, deadline);
      const ssize_t length = ready ? read(terminal_.get(), buffer, sizeof buffer) : 0;
      if (length <= 0) fail(ErrorCode::kTimeout, "no '{}' in: {}", text, text_);
      text_.append(buffer, static_cast<std::size_t>(length));
    }
  }
  std::string wait_for_line(const std::string& start) {
    wait_for(start);
    return wait_for("\r\n");
  }

 private:
  FreshDirectory temporary_;
  pid_t pid_ = -1;
  Fd terminal_;
  std::string text_;
};

std::string launch_line(const std::string& options, const std::string& script) {
  return fmt::format("{} run {} sh -c '{}'", PACELINE_COMMAND, options, script);
}

// The state of a process in /proc; 'T': it is stopped.
char state_of(const std::string& pid) {
  const std::string text = read_text("/proc/" + pid + "/stat");
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos ? '?' : text[name_end + 2];
}

// Waits until the process is stopped (if `stopped`) or runs (otherwise). Requires: the process
// starts no processes meanwhile, because a shell that is stopped while it starts one may stay in
// state 'D'.
bool comes_to(const std::string& pid, bool stopped) {
  return harness::wait_until([&] { return (state_of(pid) == 'T') == stopped; },
                             Deadline::after(20s));
}

constexpr const char* kReads = "echo in; read word; echo got $word";

TEST(RunTerminal, typed_input_reaches_rank_0_again_after_fg) {
  Shell shell;
  shell.type(launch_line("", kReads) + " &\n");
  shell.wait_for("in\r\n");
  shell.type("fg\n");
  shell.wait_for("sh -c");  // the shell prints the command that it continues
  shell.type("hello\n");
  shell.wait_for("got hello");
  shell.wait_for("ready> ");
}

TEST(RunTerminal, ctrl_z_stops_the_ranks_bg_and_fg_continue_them) {
  Shell shell;
  shell.type(
      launch_line("--all-ranks --nproc-per-node 2",
                  "echo pid=$$; [ $RANK = 0 ] || exec sleep 1000; read word; echo got $word; "
                  "exit 3") +
      "\n");
  const std::string first = shell.wait_for_line("pid="), second = shell.wait_for_line("pid=");
  shell.type("\x1a");
  shell.wait_for("Stopped");
  EXPECT_TRUE(comes_to(first, true));
  EXPECT_TRUE(comes_to(second, true));
  shell.type("bg\n");
  EXPECT_TRUE(comes_to(first, false));
  shell.type("fg\n");
  shell.wait_for("sh -c");
  shell.type("hello\n");
  shell.wait_for("got hello");
  shell.wait_for("ready> ");
}

TEST(RunTerminal, a_job_whose_launcher_is_stopped_can_be_ended) {
  Shell shell;
  shell.type(launch_line("--rdzv-id asleep", "echo pid=$$; exec sleep 1000") + "\n");
  const std::string rank = shell.wait_for_line("pid=");
  shell.type("\x1a");
  shell.wait_for("Stopped");
  EXPECT_TRUE(comes_to(rank, true));
  shell.type(PACELINE_COMMAND " stop asleep; echo code=$?\n");
  EXPECT_EQ(shell.wait_for_line("code="), "0");
}

class RunTerminalHosts : public HostsFixture {};

TEST_F(RunTerminalHosts, ctrl_z_stops_the_ranks_of_all_hosts) {
  Shell shell;
  shell.type(launch_line(fmt::format("--all-ranks --hosts {} --ssh-command {}", hosts->list(1),
                                     hosts->ssh()),
                         "echo pid=$$; exec sleep 1000") +
             "\n");
  const std::string first = shell.wait_for_line("pid="), second = shell.wait_for_line("pid=");
  shell.type("\x1a");
  shell.wait_for("Stopped");
  EXPECT_TRUE(comes_to(first, true));
  EXPECT_TRUE(comes_to(second, true));
  shell.type("fg\n");
  EXPECT_TRUE(comes_to(first, false));
  EXPECT_TRUE(comes_to(second, false));
  shell.type("\x03");
  shell.wait_for("stopped by SIGINT");
  shell.wait_for("ready> ");
}

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
  EXPECT_THAT(outcome.err, Not(Says("run.stopped")));
}

}  // namespace
}  // namespace paceline::launcher
