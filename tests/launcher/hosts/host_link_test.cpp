#include "paceline/launcher/hosts/host_link.h"

#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include "tests/harness/fresh_directory.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

// A shell script stands in for the other end of the link.
class HostLinkTest : public testing::Test {
 protected:
  std::unique_ptr<HostLink> connect(const std::string& script) {
    const HostRoute route{"a", "/bin/sh", {"sh", "-c", script, hello_}};
    return std::make_unique<HostLink>(
        loop_, route, HostLink::Handlers{[this](const Frame&) { ++num_frames_; }, [] {}});
  }
  void turn_until(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::after(20s);
    while (!condition() && !deadline.expired()) loop_.turn(Deadline::after(10ms));
    ASSERT_TRUE(condition());
  }
  void turn_for(std::chrono::milliseconds time) {
    for (const Deadline deadline = Deadline::after(time); !deadline.expired();) {
      loop_.turn(deadline);
    }
  }

  const FreshDirectory directory_;
  const std::string hello_ = directory_.write(
      // The script finds the file as $0.
      "hello", std::string(kGreeting) + encode_frame(FrameKind::kHello, "1"));
  EventLoop loop_;
  int num_frames_ = 0;
};

TEST_F(HostLinkTest, a_host_that_says_nothing_is_silent) {
  const auto link = connect("exec sleep 60");
  EXPECT_LT(link->silence(), 10s);
  turn_for(60ms);
  EXPECT_GE(link->silence(), 50ms);
  link->cut();
}

// While the link is held, the output of the host is not read, so nothing can arrive.
TEST_F(HostLinkTest, a_host_that_is_held_is_not_silent_and_has_its_time_again_afterwards) {
  const auto link = connect("exec sleep 60");
  link->hold(true);
  turn_for(1s);
  EXPECT_LT(link->silence(), 1s);
  link->hold(false);
  EXPECT_LT(link->silence(), 1s);
  turn_for(1100ms);
  EXPECT_GE(link->silence(), 1s);
  link->cut();
}

// ssh ends its lines with a carriage return, for a terminal in raw mode.
TEST_F(HostLinkTest, messages_of_ssh_are_shown_without_carriage_returns) {
  const auto link = connect("printf 'Permission denied.\\r\\nbye\\033\\r\\n' >&2");
  turn_until([&] { return link->ended(); });
  EXPECT_TRUE(link->last_lines().starts_with("  | Permission denied.\n  | bye"))
      << link->last_lines();
  EXPECT_EQ(link->last_lines().find('\r'), std::string::npos);
  EXPECT_EQ(link->last_lines().find('\033'), std::string::npos);
}

TEST_F(HostLinkTest, output_of_a_held_host_is_read_afterwards) {
  const auto link = connect("cat $0; exec sleep 60");
  link->hold(true);
  turn_for(100ms);
  EXPECT_EQ(num_frames_, 0);
  link->hold(false);
  turn_until([&] { return num_frames_ == 1; });
  EXPECT_TRUE(link->greeted());
  link->cut();
}

}  // namespace
}  // namespace paceline::launcher
