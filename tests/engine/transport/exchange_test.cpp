#include "paceline/engine/transport/exchange.h"

#include <array>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "tests/harness/raw_mesh.h"

namespace paceline {
namespace {

using harness::header_of;
using harness::kNothing;
using harness::make_raw_mesh;
using harness::RawMesh;
using harness::run_until_idle;
using namespace std::chrono_literals;

// Waits for one message of four bytes; returns the error, if any.
std::optional<Error> receive_four(RawMesh& raw, std::chrono::milliseconds limit = 5s) {
  Exchange exchange(*raw.mesh);
  std::array<std::byte, 4> into{};
  exchange.post_receive(1, into);
  return run_until_idle(exchange, limit);
}

TEST(Exchange, a_message_arrives_whole_in_any_pieces) {
  auto raw = make_raw_mesh();
  const auto header = header_of(4);
  const char* bytes = reinterpret_cast<const char*>(&header);
  std::jthread sender([&] {
    for (std::size_t i = 0; i < sizeof header; ++i) raw.send(Channel::kData, bytes + i, 1);
    for (const char* byte : {"a", "b", "c", "d"}) raw.send(Channel::kData, byte, 1);
  });
  EXPECT_FALSE(receive_four(raw));
}

TEST(Exchange, every_flipped_byte_of_magic_and_length_is_a_typed_error) {
  for (const std::size_t position : {0u, 1u, 2u, 3u, 8u, 9u, 15u}) {
    auto raw = make_raw_mesh();
    auto header = header_of(4);
    reinterpret_cast<unsigned char*>(&header)[position] ^= 0x80;
    raw.send(Channel::kData, &header, sizeof header);
    const auto error = receive_four(raw);
    ASSERT_TRUE(error) << position;
    EXPECT_EQ(error->code(), position < 4 ? ErrorCode::kCorrupt : ErrorCode::kInvalid);
    EXPECT_NE(std::string(error->what()).find("rank 1 (box)"), std::string::npos) << error->what();
  }
}

TEST(Exchange, garbage_is_corrupt) {
  auto raw = make_raw_mesh();
  const std::string text(200, 'G');
  raw.send(Channel::kData, text.data(), text.size());
  EXPECT_EQ(receive_four(raw)->code(), ErrorCode::kCorrupt);
}

TEST(Exchange, a_truncated_message_is_a_lost_peer_at_every_length) {
  std::array<char, sizeof(MessageHeader) + 4> message{};
  const auto header = header_of(4);
  std::memcpy(message.data(), &header, sizeof header);
  for (std::size_t length = 0; length < message.size(); ++length) {
    auto raw = make_raw_mesh();
    raw.send(Channel::kData, message.data(), length);
    raw.die();
    const auto error = receive_four(raw);
    ASSERT_TRUE(error) << length;
    EXPECT_EQ(error->code(), ErrorCode::kPeerLost) << error->what();
    EXPECT_EQ(error->ranks(), std::vector{1}) << error->what();
  }
}

TEST(Exchange, what_a_peer_sent_before_it_left_still_arrives) {
  auto raw = make_raw_mesh();
  const auto header = header_of(4);
  raw.send(Channel::kData, &header, sizeof header);
  raw.send(Channel::kData, "abcd", 4);
  raw.send(Channel::kControl, "\x7f", 1);
  raw.die();
  EXPECT_FALSE(receive_four(raw));
}

TEST(Exchange, a_peer_that_has_left_needs_no_presence) {
  auto raw = make_raw_mesh();
  raw.send(Channel::kControl, "\x7f", 1);
  raw.die();
  Exchange exchange(*raw.mesh);
  for (int i = 0; i < 3; ++i) {
    exchange.post_presence(1, header_of(0));
    EXPECT_NO_THROW(exchange.pump(kNothing));
  }
  const std::array<std::byte, 4> payload{};
  // But a message that the peer has not received is an error.
  exchange.post_send(1, header_of(4), payload);
  const auto error = run_until_idle(exchange, 5s);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kPeerLost) << error->what();
}

// The control channel has ended and the data channel has not, as while the peer leaves.
TEST(Exchange, a_wait_sleeps_although_a_peer_has_left) {
  auto raw = make_raw_mesh();
  raw.send(Channel::kControl, "\x7f", 1);
  raw.other.channels[static_cast<int>(Channel::kControl)].reset();
  Exchange exchange(*raw.mesh);
  std::array<std::byte, 4> into;
  exchange.post_receive(1, into);
  int rounds = 0;
  exchange.run_until([&] { return exchange.idle(); }, kNothing, Deadline::after(200ms),
                     [&] { ++rounds; });
  EXPECT_LT(rounds, 100);  // each round sleeps for 10 ms
}

TEST(Exchange, a_peer_that_trickles_bytes_does_not_move_the_deadline) {
  auto raw = make_raw_mesh();
  constexpr std::size_t kBytes = 64 << 20;  // would take minutes, byte by byte
  const auto header = header_of(kBytes);
  raw.send(Channel::kData, &header, sizeof header);
  std::jthread trickle([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      (void)!::send(raw.end(Channel::kData).get(), "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  });
  Exchange exchange(*raw.mesh);
  std::vector<std::byte> into(kBytes);
  exchange.post_receive(1, into);
  const auto begin = std::chrono::steady_clock::now();
  exchange.run_until([&] { return exchange.idle(); }, kNothing, Deadline::after(50ms), [] {});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

// The message arrives while an earlier one is expected. The first caller's check accepts its
// header; that of the next caller could refuse it.
TEST(Exchange, an_unexpected_message_is_shown_to_every_caller) {
  auto raw = make_raw_mesh();
  Exchange exchange(*raw.mesh);
  const auto header = header_of(4);
  raw.send(Channel::kData, &header, sizeof header);
  for (int caller = 0; caller < 3; ++caller) {
    int shown = 0;
    exchange.run_until([&] { return shown > 0; },
                       [&](int peer, const MessageHeader& it, bool expected) {
                         EXPECT_EQ(peer, 1);
                         EXPECT_EQ(it.payload_bytes, 4u);
                         EXPECT_FALSE(expected);
                         ++shown;
                       },
                       Deadline::after(1s), [] {});
    EXPECT_EQ(shown, 1) << caller;
  }
}

TEST(Exchange, an_unexpected_message_whose_first_bytes_come_alone_is_shown) {
  auto raw = make_raw_mesh();
  Exchange exchange(*raw.mesh);
  const auto header = header_of(4);
  const char* bytes = reinterpret_cast<const char*>(&header);
  raw.send(Channel::kData, bytes, 3);
  bool is_shown = false;
  int turns = 0;
  const auto is_done = [&] {
    if (++turns == 5) raw.send(Channel::kData, bytes + 3, sizeof header - 3);
    return is_shown;
  };
  exchange.run_until(
      is_done, [&](int, const MessageHeader&, bool) { is_shown = true; }, Deadline::after(5s),
      [] {});
  EXPECT_TRUE(is_shown);
}

TEST(Exchange, a_peer_that_stops_reading_is_a_time_out_and_one_that_died_is_lost) {
  auto raw = make_raw_mesh();
  const std::vector<std::byte> large(8 << 20);
  Exchange exchange(*raw.mesh);
  exchange.post_send(1, header_of(large.size()), large);
  exchange.run_until([&] { return exchange.idle(); }, kNothing, Deadline::after(50ms), [] {});
  EXPECT_FALSE(exchange.idle());
  raw.die();
  EXPECT_THROW(
      exchange.run_until([&] { return exchange.idle(); }, kNothing, Deadline::after(5s), [] {}),
      Error);
}

}  // namespace
}  // namespace paceline
