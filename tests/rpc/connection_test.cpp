// Frames on a connection: what is sent arrives, what no worker sends breaks it.

#include "paceline/rpc/connection.h"

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "paceline/core/check.h"
#include "paceline/core/socket.h"

#include "tests/harness/expect_error.h"

namespace paceline::rpc::connection {
namespace {

struct Text {
  std::vector<std::uint8_t> bytes;
  static auto fields(auto& m) { return std::tie(m.bytes); }
};

struct Arrived final : Connection::Receiver {
  struct One {
    Frame frame;
    std::vector<std::byte> bytes;
  };
  std::vector<One> frames;
  void take(const Frame& frame, Payload payload) override {
    frames.push_back({frame, {payload.bytes().begin(), payload.bytes().end()}});
  }
};

class Pair : public testing::Test {
 protected:
  static constexpr std::size_t kLimit = 64 << 20;
  Pair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    raw_ = Fd(ends[0]);
    receiver_ = std::make_unique<Connection>(Fd(ends[1]), nullptr, kLimit, false);
  }
  Connection& sender() {
    if (!sender_) sender_ = std::make_unique<Connection>(std::move(raw_), nullptr, kLimit, false);
    return *sender_;
  }
  // Sends and receives in turns, until everything has arrived.
  void carry() {
    do {
      EXPECT_TRUE(sender().flush());
      EXPECT_TRUE(receiver_->receive(arrived_));
    } while (sender().has_unsent());
    EXPECT_TRUE(receiver_->receive(arrived_));
  }
  void send_raw(std::span<const std::byte> bytes) {
    send_all(raw_, bytes, Deadline::after(std::chrono::seconds(5)));
  }
  void expect_corrupt(const std::vector<std::string>& words) {
    expect_error(ErrorCode::kCorrupt, words, [&] { receiver_->receive(arrived_); });
  }

  Fd raw_;
  std::unique_ptr<Connection> sender_, receiver_;
  Arrived arrived_;
};

OutgoingPointer text_of(std::size_t count) {
  Text text;
  text.bytes.resize(count);
  std::iota(text.bytes.begin(), text.bytes.end(), std::uint8_t{1});
  return make_outgoing(std::move(text));
}

TEST_F(Pair, messages_of_all_sizes_arrive_in_order) {
  const std::vector<std::size_t> counts = {0,       1,       100,       16'000,    16'384,
                                           20'000,  65'536,  262'100,   262'144,   262'145,
                                           300'000, 524'288, 5'000'000, 1'000'001, 0};
  CallNumber number = 0;
  for (const std::size_t count : counts) {
    sender().queue({.kind = FrameKind::kRequest, .number = ++number}, text_of(count));
  }
  sender().queue({.kind = FrameKind::kGoodbye});
  carry();
  ASSERT_EQ(arrived_.frames.size(), counts.size() + 1);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(arrived_.frames[i].frame.number, i + 1);
    EXPECT_EQ(arrived_.frames[i].bytes, text_of(counts[i])->writer().copy()) << counts[i];
  }
  EXPECT_EQ(arrived_.frames.back().frame.kind, FrameKind::kGoodbye);
}

TEST_F(Pair, an_urgent_frame_overtakes_what_waits) {
  sender().queue({.kind = FrameKind::kRequest, .number = 1}, text_of(20'000'000));
  EXPECT_TRUE(sender().flush());
  EXPECT_TRUE(sender().has_unsent());
  sender().queue_urgent({.kind = FrameKind::kRenew, .session = 7});
  carry();
  ASSERT_EQ(arrived_.frames.size(), 2U);
  EXPECT_EQ(arrived_.frames[0].frame.kind, FrameKind::kRenew);
  EXPECT_EQ(arrived_.frames[0].frame.session, 7U);
  EXPECT_EQ(arrived_.frames[1].bytes, text_of(20'000'000)->writer().copy());
}

TEST_F(Pair, a_message_whose_owner_wants_it_back_is_copied) {
  auto message = text_of(3'000'000);
  const auto expected = message->writer().copy();
  sender().queue({.kind = FrameKind::kRequest, .number = 1}, message);
  EXPECT_TRUE(sender().flush());
  sender().own(*message);
  EXPECT_EQ(message.use_count(), 1);
  message.reset();
  carry();
  ASSERT_EQ(arrived_.frames.size(), 1U);
  EXPECT_EQ(arrived_.frames[0].bytes, expected);
}

TEST_F(Pair, what_no_worker_sends_breaks_the_connection) {
  using Bytes = std::array<std::byte, kFrameBytes>;
  const auto with = [](std::size_t offset, std::uint32_t value, std::size_t size) {
    Bytes bytes = encode({.kind = FrameKind::kRequest});
    std::memcpy(bytes.data() + offset, &value, size);
    return bytes;
  };
  const struct {
    Bytes bytes;
    const char* word;
  } cases[] = {
      {with(0, 0x43504c02, 4), "begins with 0x43504c02"},  // another version
      {with(4, 77, 1), "kind 77"},
      {with(5, 9, 1), "effect 9"},
      {with(6, 99, 1), "status 99"},
      {with(7, 0x80, 1), "flags 0x80"},
      {with(8, 1, 4), "frame 1 where frame 0"},  // a frame is missing, or was swapped
      {with(12, 0xffff'ffff, 4), "limit is"},
      {encode({.kind = FrameKind::kPart, .length = 5}), "part of 5 bytes of no message"},
      {encode({.kind = FrameKind::kRenew, .flags = Frame::kUrgent, .length = 5}), "urgent"},
      {encode({.kind = FrameKind::kRequest, .flags = Frame::kInMemory, .length = 0}), "ticket"},
  };
  for (const auto& [bytes, word] : cases) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    raw_ = Fd(ends[0]);
    receiver_ = std::make_unique<Connection>(Fd(ends[1]), nullptr, kLimit, false);
    send_raw(bytes);
    expect_corrupt({word});
  }
}

TEST_F(Pair, a_frame_that_comes_twice_breaks_the_connection) {
  const auto frame = encode({.kind = FrameKind::kAcknowledge});
  send_raw(frame);
  EXPECT_TRUE(receiver_->receive(arrived_));
  EXPECT_EQ(arrived_.frames.size(), 1U);
  send_raw(frame);
  expect_corrupt({"frame 0 where frame 1"});
}

TEST_F(Pair, the_parts_of_a_message_are_counted) {
  send_raw(encode({.kind = FrameKind::kRequest, .flags = Frame::kInParts, .length = 10}));
  send_raw(encode({.kind = FrameKind::kPart, .counter = 1, .length = 11}));
  expect_corrupt({"part of 11 bytes"});
}

TEST_F(Pair, another_frame_within_the_parts_of_a_message_breaks_the_connection) {
  send_raw(encode({.kind = FrameKind::kRequest, .flags = Frame::kInParts, .length = 10}));
  send_raw(encode({.kind = FrameKind::kGoodbye, .counter = 1}));
  expect_corrupt({"within a message"});
}

TEST_F(Pair, a_ticket_is_good_once_and_only_in_its_process) {
  const std::uint64_t ticket = 0x1234'5678'9abc;
  send_raw(
      encode({.kind = FrameKind::kRequest, .flags = Frame::kInMemory, .length = sizeof ticket}));
  send_raw(std::as_bytes(std::span(&ticket, 1)));
  expect_corrupt({"ticket"});
}

}  // namespace
}  // namespace paceline::rpc::connection
