// More callers than an acceptor lets in at once.

#include "paceline/engine/transport/formation/acceptor.h"

#include <future>

#include <gtest/gtest.h>
#include <poll.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kCrowd = Acceptor::kMaxStrangers + 44;

class AcceptorTest : public testing::TestWithParam<bool> {
 protected:
  Fd knock() const {
    return GetParam() ? connect_unix(name_, Deadline::after(10s))
                      : connect_tcp({"127.0.0.1", port_}, Deadline::after(10s));
  }
  std::vector<Fd> crowd() const {
    std::vector<Fd> callers;
    while (callers.size() < kCrowd) callers.push_back(knock());
    return callers;
  }
  // Authenticates and introduces itself as rank `rank`.
  std::future<void> introduce(const Fd& socket, int rank) const {
    return std::async(std::launch::async, [&socket, rank, this] {
      authenticate_as_client(socket, secret_, "door", Deadline::after(30s));
      const std::array<std::int32_t, 2> hello = {rank, 1};
      send_all(socket, std::as_bytes(std::span(hello)), Deadline::after(30s));
    });
  }
  std::vector<NewChannel> wait_for(std::size_t count) {
    std::vector<NewChannel> all;
    const auto deadline = Deadline::after(30s);
    while (all.size() < count && !deadline.expired()) {
      std::vector<pollfd> entries;
      acceptor_.add_to(entries);
      ::poll(entries.data(), entries.size(), 20);
      for (NewChannel& channel : acceptor_.serve(entries)) all.push_back(std::move(channel));
    }
    return all;
  }

  const Secret secret_ = Secret::generate();
  const std::string name_ = "paceline-acceptor-" + random_hex(8);
  Fd tcp_ = listen_tcp({"127.0.0.1", 0});
  const std::uint16_t port_ = local_port(tcp_);
  Acceptor acceptor_{{listen_unix(name_), std::move(tcp_), "door", "door"}, secret_, "world"};
};

TEST_P(AcceptorTest, a_caller_before_a_crowd_is_heard) {
  const Fd member = knock();
  auto introduced = introduce(member, 7);
  const auto strangers = crowd();
  const auto arrivals = wait_for(1);
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].peer, 7);
  EXPECT_NO_THROW(introduced.get());
}

TEST_P(AcceptorTest, a_caller_after_a_silent_crowd_is_heard_before_its_handshakes_time_out) {
  const auto strangers = crowd();
  const auto begin = Clock::now();
  const Fd member = knock();
  auto introduced = introduce(member, 7);
  ASSERT_EQ(wait_for(1).size(), 1u);
  EXPECT_NO_THROW(introduced.get());
  EXPECT_LT(Clock::now() - begin, 20s);
}

TEST_P(AcceptorTest, a_crowd_of_members_is_admitted_whole) {
  const std::vector<Fd> members = crowd();
  std::vector<std::future<void>> introductions;
  for (const Fd& member : members)
    introductions.push_back(introduce(member, static_cast<int>(introductions.size())));
  EXPECT_EQ(wait_for(kCrowd).size(), kCrowd);
  for (auto& introduction : introductions) EXPECT_NO_THROW(introduction.get());
}

INSTANTIATE_TEST_SUITE_P(Doors, AcceptorTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "local" : "tcp");
});

}  // namespace
}  // namespace paceline
