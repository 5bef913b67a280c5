// Messages that are spread over several connections.

#include <array>
#include <cstring>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>

#include "paceline/engine/core/error_text.h"
#include "paceline/engine/transport/exchange.h"

#include "tests/harness/raw_mesh.h"

namespace paceline {
namespace {

using harness::header_of;
using harness::kNothing;
using harness::make_raw_mesh;
using harness::RawMesh;
using harness::run_until_idle;
using namespace std::chrono_literals;

constexpr int kStreams = 3;
constexpr std::size_t kBlock = Stripes::kBlockBytes;
constexpr std::size_t kStreamBytes = 7 * kBlock + 13;
constexpr auto kNever = [] { return false; };

std::vector<std::byte> make_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / kBlock);
  return bytes;
}

// Sends the other end's share of a message over a stream, without the header.
void send_share(const RawMesh& raw, std::size_t stream, std::span<const std::byte> bytes) {
  const Stripes stripes(bytes.size(), kStreams);
  const Fd& end = raw.end(data_channel(stream));
  std::size_t done = 0;
  for (auto run = stripes.next(stream, 0); run.count > 0; run = stripes.next(stream, done)) {
    pollfd room{end.get(), POLLOUT, 0};
    ::poll(&room, 1, 5000);
    const ssize_t sent =
        ::send(end.get(), bytes.data() + run.offset, run.count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) throw system_error("send()");
    done += static_cast<std::size_t>(sent);
  }
}

TEST(Streams, carry_messages_of_every_size_in_order) {
  for (const int streams : {2, 3, 16}) {
    auto one = make_raw_mesh(streams);
    auto wire = std::make_unique<SocketWire>(2);
    for (int channel = 0; channel < kNumChannels + streams - 1; ++channel) {
      wire->connect(0, static_cast<Channel>(channel), std::move(one.other.channels[channel]),
                    nullptr);
    }
    Mesh other("world", 1, std::vector<PeerAddress>(2), std::move(wire));
    const std::vector<std::size_t> sizes = {
        0, kStreamBytes, 5, 2 * kBlock, 2 * kBlock - 1, kStreamBytes, 9 * kBlock, 40 * kBlock, 1};
    std::vector<std::vector<std::byte>> sent, got;
    for (const std::size_t size : sizes) {
      sent.push_back(make_bytes(size));
      got.emplace_back(size);
    }
    std::jthread sender([&] {
      Exchange exchange(other);
      exchange.post_presence(0, header_of(0));
      for (const auto& bytes : sent) exchange.post_send(0, header_of(bytes.size()), bytes);
      EXPECT_FALSE(run_until_idle(exchange, 20s));
    });
    Exchange exchange(*one.mesh);
    for (auto& bytes : got) exchange.post_receive(1, bytes);
    const auto error = run_until_idle(exchange, 20s);
    EXPECT_FALSE(error) << error->what();
    EXPECT_TRUE(got == sent) << streams;
  }
}

TEST(Streams, a_message_counts_as_received_up_to_its_first_gap) {
  auto raw = make_raw_mesh(kStreams);
  const auto bytes = make_bytes(kStreamBytes);
  std::vector<std::byte> into(kStreamBytes);
  Exchange exchange(*raw.mesh);
  const auto number = exchange.post_receive(1, into);
  const auto received_is = [&](std::size_t count) {
    exchange.run_until([&] { return exchange.received_bytes(1, number) == count; }, kNothing,
                       Deadline::after(5s), [] {});
    return exchange.received_bytes(1, number);
  };
  // Bytes of a stream may arrive before the header; they are not read, because the message is not
  // known yet.
  std::jthread second([&] { send_share(raw, 1, bytes); });
  exchange.run_until(kNever, kNothing, Deadline::after(20ms), [] {});
  EXPECT_EQ(exchange.received_bytes(1, number), 0u);
  const auto header = header_of(kStreamBytes);
  raw.send(Channel::kData, &header, sizeof header);
  std::jthread first([&] { send_share(raw, 0, bytes); });
  EXPECT_EQ(received_is(2 * kBlock), 2 * kBlock);
  std::jthread third([&] { send_share(raw, 2, bytes); });
  EXPECT_EQ(received_is(Exchange::kAll), Exchange::kAll);
  EXPECT_TRUE(into == bytes);
}

TEST(Streams, one_that_breaks_in_the_middle_is_a_lost_peer) {
  for (const std::size_t broken : {0u, 1u, 2u}) {
    auto raw = make_raw_mesh(kStreams);
    std::vector<std::byte> into(kStreamBytes);
    Exchange exchange(*raw.mesh);
    exchange.post_receive(1, into);
    const auto header = header_of(kStreamBytes);
    raw.send(Channel::kData, &header, sizeof header);
    raw.send(data_channel(broken), "abc", 3);
    raw.other.channels[static_cast<int>(data_channel(broken))].reset();
    const auto error = run_until_idle(exchange, 5s);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kPeerLost) << error->what();
    EXPECT_EQ(error->ranks(), std::vector{1}) << error->what();
  }
}

TEST(Streams, one_that_trickles_or_takes_nothing_does_not_move_the_deadline) {
  auto raw = make_raw_mesh(kStreams);
  const auto bytes = make_bytes(100 * kBlock);
  std::vector<std::byte> into(kStreamBytes);
  Exchange exchange(*raw.mesh);
  exchange.post_receive(1, into);
  exchange.post_send(1, header_of(bytes.size()), bytes);
  const auto header = header_of(kStreamBytes);
  raw.send(Channel::kData, &header, sizeof header);
  std::jthread trickle([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      (void)!::send(raw.end(data_channel(2)).get(), "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      std::this_thread::sleep_for(1ms);
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto error = run_until_idle(exchange, 100ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kTimeout) << error->what();
}

TEST(Streams, one_that_is_slow_does_not_hold_the_others_up) {
  auto raw = make_raw_mesh(kStreams);
  const auto bytes = make_bytes(60 * kBlock);
  Exchange exchange(*raw.mesh);
  const auto number = exchange.post_send(1, header_of(bytes.size()), bytes);
  exchange.post_send(1, header_of(bytes.size()), bytes);
  // The peer does not read stream 1; the other streams send their shares of both messages.
  const Stripes stripes(bytes.size(), kStreams);
  std::array<std::size_t, kStreams> got{};
  const auto wanted = [&](std::size_t stream) {
    return 2 * (stripes.share(stream) + (stream == 0 ? sizeof(MessageHeader) : 0));
  };
  std::vector<std::byte> room(1 << 20);
  exchange.run_until(
      [&] {
        for (const std::size_t stream : {0u, 2u}) {
          const ssize_t now =
              ::recv(raw.end(data_channel(stream)).get(), room.data(), room.size(), MSG_DONTWAIT);
          if (now > 0) got[stream] += static_cast<std::size_t>(now);
        }
        return got[0] == wanted(0) && got[2] == wanted(2);
      },
      kNothing, Deadline::after(20s), [] {});
  EXPECT_EQ(got[0], wanted(0));
  EXPECT_EQ(got[2], wanted(2));
  EXPECT_LT(exchange.sent_bytes(1, number), bytes.size());
  EXPECT_GE(exchange.sent_bytes(1, number), kBlock);  // stream 0 carried the first block
}

}  // namespace
}  // namespace paceline
