// Children that this process has inherited from its ranks: which of them it collects, and which it
// leaves to their owner.

#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/launcher/process/descendants.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

class OrphansTest : public testing::Test {
 protected:
  OrphansTest() {
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ends, &before_);
  }
  ~OrphansTest() override { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  static pid_t make_child_that_ends() {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    return child;
  }

  EventLoop loop_;

 private:
  sigset_t before_{};
};

TEST_F(OrphansTest, those_that_have_ended_are_waited_for) {
  Orphans orphans(loop_);
  EXPECT_FALSE(orphans.may_wait());
  const pid_t child = make_child_that_ends();
  loop_.turn(Deadline::after(30s));
  ASSERT_TRUE(orphans.may_wait());
  orphans.reap([](pid_t) { return false; });
  EXPECT_FALSE(orphans.may_wait());
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), -1);
}

TEST_F(OrphansTest, a_child_with_an_owner_is_left_to_its_owner) {
  Orphans orphans(loop_);
  const pid_t child = make_child_that_ends();
  loop_.turn(Deadline::after(30s));
  ASSERT_TRUE(orphans.may_wait());
  orphans.reap([child](pid_t pid) { return pid == child; });
  EXPECT_TRUE(orphans.may_wait());
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), child);
}

}  // namespace
}  // namespace paceline::launcher
