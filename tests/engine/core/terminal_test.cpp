#include <cstdlib>

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"

namespace paceline {
namespace {

// The answer of a process that was started from a new terminal of type `kind`.
bool draws_on_its_terminal(const char* kind) {
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    setenv("TERM", kind, 1);
    _exit(can_draw_on(STDOUT_FILENO) ? 1 : 0);
  }
  const Fd owned(terminal);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

TEST(Terminal, a_process_draws_on_the_one_that_it_was_started_from) {
  EXPECT_TRUE(draws_on_its_terminal("xterm"));
}

TEST(Terminal, one_without_escape_codes_is_not_drawn_on) {
  EXPECT_FALSE(draws_on_its_terminal("dumb"));
  EXPECT_FALSE(draws_on_its_terminal(""));
}

// Open MPI's mpirun makes a terminal for its ranks even if its own output is a pipe.
TEST(Terminal, one_that_a_launcher_made_and_a_pipe_are_not_drawn_on) {
  setenv("TERM", "xterm", 1);
  int outer = -1, inner = -1, ends[2];
  ASSERT_EQ(openpty(&outer, &inner, nullptr, nullptr, nullptr), 0);
  ASSERT_EQ(pipe(ends), 0);
  const Fd owned[] = {Fd(outer), Fd(inner), Fd(ends[0]), Fd(ends[1])};
  ASSERT_EQ(isatty(inner), 1);
  EXPECT_FALSE(can_draw_on(inner));
  EXPECT_FALSE(can_draw_on(ends[1]));
}

}  // namespace
}  // namespace paceline
