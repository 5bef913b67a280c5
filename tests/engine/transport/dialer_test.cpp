// Many calls at once: to peers that answer, that stay silent, that do not listen yet, or that no
// longer listen.

#include "paceline/engine/transport/formation/dialer.h"

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/transport/formation/acceptor.h"

#include "tests/harness/says.h"
#include "tests/harness/server_handshake.h"
#include "tests/harness/stopped_process.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class DialerTest : public testing::TestWithParam<bool> {
 protected:
  // Listens at a port below the range from which the kernel chooses ports, so that no other test
  // gets it while it is closed.
  static Fd listen_anywhere() {
    std::mt19937 random(std::random_device{}());
    for (;;) {
      try {
        return listen_tcp({"127.0.0.1", static_cast<std::uint16_t>(20'000 + random() % 12'000)});
      } catch (const Error&) {
        continue;  // the port is in use
      }
    }
  }
  struct Door {
    std::string unix_name = "paceline-dialer-" + random_hex(8);
    Fd local = listen_unix(unix_name);
    Fd tcp = listen_anywhere();
    Endpoint endpoint{"127.0.0.1", local_port(tcp)};
    const Fd& of(bool is_local) const { return is_local ? local : tcp; }
  };
  Callee callee(int rank, const Door& door, HandshakeSide::Keys keys = {}) const {
    return {.rank = rank,
            .description = "rank " + std::to_string(rank) + " (box)",
            .unix_name = GetParam() ? door.unix_name : "",
            .tcp = door.endpoint,
            .context = "door",
            .keys = keys};
  }
  std::unique_ptr<Acceptor> open(Door& door, bool encrypts = false) const {
    return std::make_unique<Acceptor>(
        Acceptor::Doors{std::move(door.local), std::move(door.tcp), "door", "door", encrypts},
        secret_, "world");
  }
  Fd answer(const Door& door) const {
    Fd caller = accept_connection(door.of(GetParam()), Deadline::after(10s));
    harness::authenticate_as_server(caller, secret_, "door", Deadline::after(10s));
    return caller;
  }
  static std::vector<NewChannel> turn(Dialer& dialer, Vigil* vigil = nullptr) {
    std::vector<pollfd> entries;
    dialer.add_to(entries);
    const auto limit = std::min<std::chrono::nanoseconds>(dialer.time_left(), 20ms);
    ::poll(entries.data(), entries.size(), Deadline::after(limit).poll_timeout_ms());
    if (vigil != nullptr) vigil->look();
    return dialer.serve(entries);
  }
  static std::vector<NewChannel> call(Dialer& dialer, std::size_t count) {
    std::vector<NewChannel> all;
    const auto deadline = Deadline::after(30s);
    while (all.size() < count && !deadline.expired()) {
      for (NewChannel& channel : turn(dialer)) all.push_back(std::move(channel));
    }
    return all;
  }
  Error failure_of(Dialer& dialer) const {
    try {
      call(dialer, 1);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::kSystem, "nothing failed");
  }

  const Secret secret_ = Secret::generate();
};

TEST_P(DialerTest, a_silent_peer_does_not_hold_up_the_others) {
  const Door silent, open;
  Dialer dialer({9, "rank 9"}, {callee(2, silent), callee(1, open)}, secret_, "world");
  auto answers = std::async(std::launch::async, [&] {
    std::vector<Fd> callers;
    for (int channel = 0; channel < kNumChannels; ++channel) callers.push_back(answer(open));
    return callers;
  });
  const auto channels = call(dialer, kNumChannels);
  ASSERT_EQ(channels.size(), static_cast<std::size_t>(kNumChannels));
  for (int channel = 0; channel < kNumChannels; ++channel) {
    EXPECT_EQ(channels[static_cast<std::size_t>(channel)].peer, 1);
  }
  EXPECT_EQ(channels[0].channel, static_cast<int>(Channel::kControl));
  const auto callers = answers.get();
  std::array<std::int32_t, 2> hello{};
  receive_all(callers[0], std::as_writable_bytes(std::span(hello)), Deadline::after(10s));
  EXPECT_EQ(hello, (std::array<std::int32_t, 2>{9, 0}));
}

// More channels than a rank calls, and than a rank accepts, at the same time.
TEST_P(DialerTest, a_hundred_calls_come_through_one_door) {
  Door door;
  const auto at = callee(3, door);
  auto acceptor = open(door);
  std::vector<std::future<std::size_t>> ranks;
  for (int rank = 4; rank < 40; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      Dialer dialer({rank, rank_name(rank, rank)}, {at}, secret_, "world");
      return call(dialer, kNumChannels).size();
    }));
  }
  std::vector<NewChannel> heard;
  const auto deadline = Deadline::after(30s);
  while (heard.size() < kNumChannels * ranks.size() && !deadline.expired()) {
    std::vector<pollfd> entries;
    acceptor->add_to(entries);
    ::poll(entries.data(), entries.size(), 20);
    for (NewChannel& channel : acceptor->serve(entries)) heard.push_back(std::move(channel));
  }
  for (auto& rank : ranks) EXPECT_EQ(rank.get(), static_cast<std::size_t>(kNumChannels));
  EXPECT_EQ(heard.size(), kNumChannels * ranks.size());
}

TEST_P(DialerTest, both_ends_of_a_channel_that_is_to_be_encrypted_have_the_keys) {
  if (GetParam()) return;  // Unix sockets are not encrypted
  Door door;
  Dialer dialer({4, "rank 4"}, {callee(3, door, HandshakeSide::Keys::kAgree)}, secret_, "world");
  auto acceptor = open(door, true);
  std::vector<NewChannel> heard, called;
  const auto deadline = Deadline::after(30s);
  while ((heard.empty() || called.empty()) && !deadline.expired()) {
    for (NewChannel& channel : turn(dialer)) called.push_back(std::move(channel));
    std::vector<pollfd> entries;
    acceptor->add_to(entries);
    ::poll(entries.data(), entries.size(), 5);
    for (NewChannel& channel : acceptor->serve(entries)) heard.push_back(std::move(channel));
  }
  ASSERT_FALSE(heard.empty() || called.empty());
  EXPECT_EQ(heard[0].keys.send, called[0].keys.receive);
  EXPECT_EQ(heard[0].keys.receive, called[0].keys.send);
  EXPECT_NE(heard[0].keys.send, heard[0].keys.receive);
}

TEST_P(DialerTest, a_rank_that_listens_a_little_later_is_reached) {
  Door door;
  const auto at = callee(3, door);
  door.local.reset();
  door.tcp.reset();
  Dialer dialer({4, "rank 4"}, {at}, secret_, "world");
  for (const auto until = Clock::now() + 50ms; Clock::now() < until;) turn(dialer);
  Door later;
  later.local = listen_unix(door.unix_name);
  later.tcp = listen_tcp(door.endpoint);
  auto answers = std::async(std::launch::async, [&] { return answer(later); });
  const auto channels = call(dialer, 1);
  ASSERT_EQ(channels.size(), 1u);
  EXPECT_EQ(channels[0].peer, 3);
}

// All processes of a job were stopped, and the peer continues a little later than this rank.
TEST_P(DialerTest, a_rank_that_was_stopped_while_it_called_does_not_call_the_peer_dead) {
  Door door;
  const auto at = callee(3, door);
  door.local.reset();
  door.tcp.reset();
  const auto calls = [&] {
    harness::stop_soon();
    Dialer dialer({4, "rank 4"}, {at}, secret_, "world");
    try {
      for (Vigil vigil; turn(dialer, &vigil).empty();) continue;
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  Door later;
  Fd called;
  EXPECT_TRUE(harness::in_a_process(calls, 1500ms, [&] {
    std::this_thread::sleep_for(300ms);
    later.local = listen_unix(door.unix_name);
    later.tcp = listen_tcp(door.endpoint);
    called = accept_connection(later.of(GetParam()), Deadline::after(10s));
    if (called) harness::authenticate_as_server(called, secret_, "door", Deadline::after(10s));
  }));
}

TEST_P(DialerTest, a_rank_that_refuses_is_named_as_lost) {
  Door door;
  const auto at = callee(3, door);
  door.local.reset();
  door.tcp.reset();
  Dialer dialer({4, "rank 4"}, {at}, secret_, "world");
  const Error error = failure_of(dialer);
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(error.what(), Says("forming.died_or_firewall", "rank 4", "rank 3 (box)", "world"));
}

TEST_P(DialerTest, a_rank_that_hangs_up_in_the_handshake_is_called_again) {
  const Door door;
  Dialer dialer({4, "rank 4"}, {callee(3, door)}, secret_, "world");
  auto answers = std::async(std::launch::async, [&] {
    accept_connection(door.of(GetParam()), Deadline::after(10s));  // closed before its first byte
    Fd caller = accept_connection(door.of(GetParam()), Deadline::after(10s));
    std::array<std::byte, 40> hello{};
    receive_all(caller, hello, Deadline::after(10s));
    send_all(caller, std::span(hello).first(8), Deadline::after(10s));
    caller.reset();  // closed in the middle of its first message
    return answer(door);
  });
  EXPECT_EQ(call(dialer, 1).size(), 1u);
}

TEST_P(DialerTest, another_secret_is_refused_before_this_rank_identifies_itself) {
  const Door door;
  auto dialer = std::make_unique<Dialer>(Dialer::Caller{4, "rank 4"}, std::vector{callee(3, door)},
                                         secret_, "world");
  auto answers = std::async(std::launch::async, [&] {
    const Fd caller = accept_connection(door.of(GetParam()), Deadline::after(10s));
    ServerHandshake other(Secret::generate(), "door", "the caller");
    std::array<std::byte, 40> hello{};
    receive_all(caller, hello, Deadline::after(10s));
    send_all(caller, other.feed(hello), Deadline::after(10s));
    char more = 0;
    wait_ready(caller.get(), POLLIN, Deadline::after(10s));
    return ::recv(caller.get(), &more, 1, 0);
  });
  const Error error = failure_of(*dialer);
  EXPECT_EQ(error.code(), ErrorCode::kInvalid);
  EXPECT_THAT(error.what(), Says("nodes.secret_differs"));
  dialer.reset();  // closes the connection
  EXPECT_LE(answers.get(), 0);
}

INSTANTIATE_TEST_SUITE_P(Doors, DialerTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "local" : "tcp");
});

}  // namespace
}  // namespace paceline
