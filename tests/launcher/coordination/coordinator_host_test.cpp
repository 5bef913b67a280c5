// Unknown connections to the coordinator of a job cost it little and shut out no agent. And neither
// an agent nor the coordinator is taken for silent because the other side did not listen.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/coordination/job_control.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

class CoordinatorHosts : public testing::Test {
 protected:
  CoordinatorHosts() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~CoordinatorHosts() override { setrlimit(RLIMIT_NOFILE, &before_); }

  void listen(const KeepAlive& keep_alive = {}) {
    Fd listener = listen_tcp({"127.0.0.1", 0}, 512);
    endpoint_ = {"127.0.0.1", local_port(listener)};
    host_.emplace(loop_, CoordinatorSettings{.terms = {.num_nodes = 2, .min_nodes = 2}},
                  std::move(listener), secret_, keep_alive);
  }
  void connect(int count) {
    for (int i = 0; i < count; ++i) {
      strangers_.push_back(connect_tcp(endpoint_, Deadline::after(20s)));
    }
  }
  static void limit_descriptors(int count) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(count);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  static int next_descriptor() { return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)).get(); }
  // Runs the event loop of the coordinator, as its agent does. Returns the number of turns.
  int turn_for(std::chrono::milliseconds time) {
    int turns = 0;
    for (const Deadline deadline = Deadline::after(time); !deadline.expired(); ++turns) {
      const Deadline next = host_->next_deadline();
      loop_.turn(next.moment() < deadline.moment() ? next : deadline);
      host_->tend();
    }
    return turns;
  }
  // The agent connects on another thread, because the coordinator's loop must run meanwhile.
  std::unique_ptr<CoordinatorLink> connect_agent(EventLoop& loop,
                                                 const KeepAlive& keep_alive = {}) {
    std::atomic<bool> done = false;
    std::string problem;
    std::unique_ptr<CoordinatorLink> link;
    std::jthread agent([&] {
      try {
        link = std::make_unique<CoordinatorLink>(loop, endpoint_, secret_, keep_alive,
                                                 Deadline::after(20s));
      } catch (const Error& error) {
        problem = error.what();
      }
      done = true;
    });
    while (!done) turn_for(10ms);
    agent.join();
    EXPECT_EQ(problem, "");
    return link;
  }
  void expect_an_agent_gets_in() {
    EventLoop loop;
    connect_agent(loop);
  }
  int num_hung_up() const {
    return static_cast<int>(std::count_if(strangers_.begin(), strangers_.end(), [](const Fd& fd) {
      char byte = 0;
      return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0;
    }));
  }

  const Secret secret_ = Secret::from_text("0123456789abcdef0123456789abcdef");
  rlimit before_{};
  EventLoop loop_;
  Endpoint endpoint_;
  std::optional<CoordinatorHost> host_;
  std::vector<Fd> strangers_;
};

TEST_F(CoordinatorHosts,
       strangers_who_have_not_said_who_they_are_get_a_quarter_of_the_descriptors) {
  limit_descriptors(512);
  listen();
  connect(200);
  CaptureStderr();
  turn_for(300ms);
  const std::string said = GetCapturedStderr();
  EXPECT_EQ(num_hung_up(), 200 - 512 / 4);
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_THAT(said, Says("coordinator.refused_connection", "127.0.0.1:"));
  expect_an_agent_gets_in();
}

TEST_F(CoordinatorHosts, strangers_beyond_the_last_descriptor_make_room_for_each_other) {
  listen();
  connect(200);
  CaptureStderr();
  limit_descriptors(next_descriptor() + 10);
  turn_for(300ms);
  limit_descriptors(512);
  const std::string said = GetCapturedStderr();
  EXPECT_GE(num_hung_up(), 190);
  EXPECT_LT(num_hung_up(), 200);  // the newest connections stay
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(CoordinatorHosts, connections_that_cannot_be_accepted_neither_spin_nor_flood_the_log) {
  listen();
  connect(20);
  CaptureStderr();
  const int next = next_descriptor();
  limit_descriptors(next);
  const int turns = turn_for(1500ms);
  limit_descriptors(next + 100);
  const std::string said = GetCapturedStderr();
  EXPECT_LT(turns, 200);
  EXPECT_THAT(said, Says("coordinator.cannot_accept", "Too many open files"));
  EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 3) << said;
  expect_an_agent_gets_in();
}

TEST_F(CoordinatorHosts, the_coordinator_has_its_time_again_after_a_standstill_of_an_agent) {
  listen({.interval = 50ms, .max_attempts = 4});
  EventLoop loop;
  const auto link = connect_agent(loop, {.interval = 50ms, .max_attempts = 4});
  ASSERT_TRUE(link);
  loop.turn(Deadline::after(10ms));
  std::this_thread::sleep_for(1500ms);
  loop.turn(Deadline::after(std::chrono::milliseconds(0)));
  link->tend();
  EXPECT_EQ(link->lost(), "");
  for (const Deadline deadline = Deadline::after(20s); link->lost().empty();) {
    ASSERT_FALSE(deadline.expired());
    loop.turn(Deadline::after(20ms));  // the coordinator's loop does not run
    link->tend();
  }
  EXPECT_THAT(link->lost(), Says("coordinator.silent", 0.2));
}

TEST_F(CoordinatorHosts, agents_have_their_time_again_after_a_standstill_of_the_coordinator) {
  listen({.interval = 50ms, .max_attempts = 4});
  EventLoop loop;
  const auto link = connect_agent(loop);
  ASSERT_TRUE(link);
  turn_for(100ms);
  std::this_thread::sleep_for(1500ms);
  turn_for(10ms);
  loop.turn(Deadline::after(std::chrono::milliseconds(0)));
  EXPECT_EQ(link->lost(), "");
  for (const Deadline deadline = Deadline::after(20s); link->lost().empty();) {
    ASSERT_FALSE(deadline.expired());
    turn_for(500ms);  // the agent's loop does not run, so it sends no sign of life
    loop.turn(Deadline::after(std::chrono::milliseconds(0)));
  }
}

}  // namespace
}  // namespace paceline::launcher
