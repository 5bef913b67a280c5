#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/launcher/diagnosis/stack_reader.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;

// The program that reads stacks is the running one, which is this test. So `stacks --json --pid=N`
// is answered here, before main() and after a while.
__attribute__((constructor)) void answer_as_a_helper(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "stacks") return;
  usleep(200'000);
  std::puts(R"({"threads": [{"thread": 7, "name": "main", "frames": ["work"]}]})");
  std::fflush(stdout);
  _exit(0);
}

class StackSurveys : public testing::Test {
 protected:
  StackSurveys() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~StackSurveys() override {
    allow_descriptors(before_.rlim_cur);
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }
  static void allow_descriptors(rlim_t count) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = count;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  static std::map<int, StackReader::Target> ranks(int count) {
    std::map<int, StackReader::Target> targets;
    for (int rank = 0; rank < count; ++rank) targets[rank].pid = getpid();
    return targets;
  }
  void turn_until_done() {
    const Deadline deadline = Deadline::after(20s);
    while (!stacks_ && !deadline.expired()) loop_.turn(deadline);
    ASSERT_TRUE(stacks_);
  }

  EventLoop loop_;
  const StackSurvey::Handler keep_ = [this](const RankStacks& stacks) { stacks_ = stacks; };
  std::optional<RankStacks> stacks_;
  rlimit before_{};
};

TEST_F(StackSurveys, of_more_ranks_than_are_read_at_once_have_them_all) {
  const StackSurvey survey(loop_, "/proc/self/exe", ranks(6), keep_);
  turn_until_done();
  EXPECT_EQ(stacks_text(*stacks_), "  ranks 0-5, thread main:\n      #0  work\n");
}

// The first four stacks are already being read when no more descriptors can be opened.
TEST_F(StackSurveys, name_ranks_that_cannot_be_looked_at_and_end_nothing) {
  const StackSurvey survey(loop_, "/proc/self/exe", ranks(6), keep_);
  allow_descriptors(0);
  EXPECT_NO_THROW(turn_until_done());
  allow_descriptors(before_.rlim_cur);
  const std::string text = stacks_text(*stacks_);
  EXPECT_THAT(text, Says("stacks.of_thread", "0-3", "main", "      #0  work\n"));
  EXPECT_THAT(text, Says("stacks.unreadable", "4, 5"));
  EXPECT_THAT(text, HasSubstr("Too many open files"));
}

// A program that contains the launcher as a library must not be started again in place of the
// helper.
TEST_F(StackSurveys, without_a_helper_say_that_there_is_none) {
  const StackSurvey survey(loop_, "", ranks(2), keep_);
  turn_until_done();
  EXPECT_THAT(stacks_text(*stacks_), Says("stacks.no_helper", "0, 1"));
}

TEST_F(StackSurveys, of_ranks_none_of_which_can_be_looked_at_are_refused_at_once) {
  allow_descriptors(0);
  EXPECT_THROW(StackSurvey(loop_, "/proc/self/exe", ranks(6), keep_), Error);
  allow_descriptors(before_.rlim_cur);
  EXPECT_FALSE(stacks_);
}

}  // namespace
}  // namespace paceline::launcher
