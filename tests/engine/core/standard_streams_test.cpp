#include <array>
#include <cerrno>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/system/io.h"

namespace paceline {
namespace {

// Starts a child with closed standard streams; returns how many of its checks fail, or -1.
int num_wrong_in_child() {
  const pid_t child = fork();
  if (child == 0) {
    for (int stream = 0; stream < 3; ++stream) close(stream);
    hold_standard_streams();
    const int first = socket(AF_UNIX, SOCK_STREAM, 0);
    char byte = 'x';
    int wrong = first < 3 ? 1 : 0;
    wrong += read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1;
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      wrong += write(stream, &byte, 1) < 0 && errno == EBADF ? 0 : 1;
    }
    _exit(wrong);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreams, closed_ones_are_not_reused_and_still_take_nothing) {
  EXPECT_EQ(num_wrong_in_child(), 0);
}

TEST(StandardStreams, open_ones_are_left_alone) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const int usual = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  hold_standard_streams();
  const ssize_t written = write(STDOUT_FILENO, "x", 1);
  dup2(usual, STDOUT_FILENO);
  char byte = 0;
  EXPECT_EQ(written, 1);
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  for (const int fd : {ends[0], ends[1], usual}) close(fd);
}

}  // namespace
}  // namespace paceline
