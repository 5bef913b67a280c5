#include <array>
#include <cerrno>

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/launcher/process/rank_resources.h"

namespace paceline::launcher {
namespace {

// Runs `body` in a child process, whose memory policy ends with it. Returns the child's exit code.
template <class Body>
int in_child(Body body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Policy {
  int mode = -1;
  std::array<unsigned long, 16> nodes{};
  bool read() {
    return syscall(SYS_get_mempolicy, &mode, nodes.data(), nodes.size() * 64, nullptr, 0) == 0;
  }
};

TEST(MemoryBinding, a_rank_prefers_the_nodes_it_was_given) {
  Policy before;
  if (!before.read()) GTEST_SKIP() << "this kernel or container has no memory policies";
  const int outcome = in_child([] {
    if (!prefer_memory_of({0})) return 77;  // a seccomp filter forbids it
    Policy policy;
    if (!policy.read()) return 1;
    const bool prefers = policy.mode == MPOL_PREFERRED_MANY || policy.mode == MPOL_PREFERRED;
    return prefers && policy.nodes[0] == 1 ? 0 : 2;
  });
  if (outcome == 77) GTEST_SKIP() << "set_mempolicy is forbidden here";
  EXPECT_EQ(outcome, 0);
}

TEST(MemoryBinding, a_node_that_does_not_exist_is_said) {
  EXPECT_EQ(in_child([] { return prefer_memory_of({1023}) ? 1 : 0; }), 0);
}

TEST(MemoryBinding, no_nodes_change_nothing) {
  EXPECT_EQ(in_child([] {
              Policy before, after;
              if (!before.read()) return 0;
              if (!prefer_memory_of({}) || !after.read()) return 1;
              return before.mode == after.mode ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace paceline::launcher
