// Agent links compare the clocks of an agent and the coordinator.

#include "paceline/launcher/messages/agent_link.h"

#include <optional>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

class AgentLinks : public testing::Test {
 protected:
  AgentLinks() {
    const Fd listener = listen_tcp({"127.0.0.1", 0});
    Fd near = connect_tcp({"127.0.0.1", local_port(listener)}, Deadline::after(20s));
    Fd far = accept_connection(listener, Deadline::after(20s));
    for (const Fd* fd : {&near, &far}) fcntl(fd->get(), F_SETFL, O_NONBLOCK);
    near_.emplace(std::move(near));
    far_.emplace(std::move(far));
  }
  // Returns the messages that arrive until `condition` holds for them, for at most 20 s.
  template <class Condition>
  static std::vector<std::string> read_until(AgentLink& link, Condition condition) {
    std::vector<std::string> all;
    for (const Deadline deadline = Deadline::after(20s); !deadline.expired();) {
      for (std::string& text : link.read()) all.push_back(std::move(text));
      if (condition(all)) break;
    }
    return all;
  }

  std::optional<AgentLink> near_, far_;
};

TEST_F(AgentLinks, compare_their_clocks_beside_the_messages) {
  EXPECT_FALSE(near_->clock().measured());
  near_->send("first");
  near_->compare_clocks();
  near_->send("second");
  const auto there = read_until(*far_, [](const auto& all) { return all.size() == 2; });
  EXPECT_EQ(there, (std::vector<std::string>{"first", "second"}));
  const auto here = read_until(*near_, [&](const auto&) { return near_->clock().measured(); });
  EXPECT_TRUE(here.empty());
  ASSERT_TRUE(near_->clock().measured());
  // Both ends have the same clock.
  EXPECT_LE(std::chrono::abs(near_->clock().offset()), near_->clock().error());
  EXPECT_LT(near_->clock().error(), 10s);
  EXPECT_FALSE(far_->clock().measured());
}

TEST_F(AgentLinks, the_largest_messages_arrive) {
  const std::string largest(kMaxAgentMessage, 'x');
  near_->send(largest);
  near_->send(largest);
  const std::jthread sender([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) near_->flush();
  });
  const auto all = read_until(*far_, [](const auto& texts) { return texts.size() == 2; });
  EXPECT_TRUE(all == std::vector({largest, largest}));
}

TEST_F(AgentLinks, readings_that_are_none_end_the_connection) {
  for (const char* text : {"?", "?x", "?1 2", "!1", "!1 2", "!1 2 3 4", "?99999999999999999999"}) {
    near_->send(text);
    EXPECT_THROW(read_until(*far_, [](const auto& all) { return !all.empty(); }), Error) << text;
  }
}

}  // namespace
}  // namespace paceline::launcher
