// Signals from the terminal to the launcher reach its agent, however early they come.

#include "paceline/launcher/process/supervisor.h"

#include <csignal>
#include <optional>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

// The next signal that the supervisor passes on, or nothing if none comes within 20 s.
std::optional<int> next_signal(const AgentChannel& channel) {
  std::byte signal{};
  if (!wait_ready(channel.control.get(), POLLIN, Deadline::after(20s))) return {};
  if (read_some(channel.control.get(), {&signal, 1}) != 1) return {};
  return std::to_integer<int>(signal);
}

// An agent that stops the launcher before the supervisor may have set up its own signals.
int early_agent(AgentChannel channel) {
  kill(getppid(), SIGTSTP);
  if (next_signal(channel) != SIGTSTP) return 1;
  if (next_signal(channel) != SIGCONT) return 2;
  return 0;
}

TEST(Supervisor, stops_the_ranks_with_itself_from_the_agents_first_moment_on) {
  constexpr int kTimes = 200;  // in some of them the agent is faster than the supervisor
  for (int i = 0; i < kTimes; ++i) {
    const pid_t launcher = fork();
    ASSERT_GE(launcher, 0);
    if (launcher == 0) {
      // The kernel lets a process stop only if a parent in another process group could continue it.
      setpgid(0, 0);
      signal(SIGTSTP, SIG_DFL);
      _exit(run_supervised(early_agent));
    }
    int status = 0;
    ASSERT_EQ(waitpid(launcher, &status, WUNTRACED), launcher);
    ASSERT_TRUE(WIFSTOPPED(status)) << status;
    kill(launcher, SIGCONT);
    ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 0) << "round " << i;
  }
}

}  // namespace
}  // namespace paceline::launcher
