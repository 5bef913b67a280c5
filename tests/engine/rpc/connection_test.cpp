// Frames on a connection: every frame arrives, and a frame that no worker sends is an error.

#include "paceline/engine/rpc/protocol/connection.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/wait_until.h"

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
  std::vector<Payload> kept;
  bool keeps = false;
  void take(const Frame& frame, Payload payload) override {
    const auto bytes = std::as_const(payload).bytes();
    frames.push_back({frame, {bytes.begin(), bytes.end()}});
    if (keeps) kept.push_back(std::move(payload));
  }
};

// A connection with shared memory only for large messages, for all messages, or for none.
enum class Family { kUnix, kRings, kTcp };

class Pair : public testing::Test {
 protected:
  static constexpr std::size_t kLimit = 64 << 20;
  explicit Pair(Family family) : family_(family) { connect(); }
  void connect() {
    if (family_ != Family::kTcp) {
      std::array<int, 2> ends{};
      const int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
      EXPECT_EQ(::socketpair(AF_UNIX, type, 0, ends.data()), 0);
      raw_ = Fd(ends[0]);
      receiver_ = std::make_unique<Connection>(Fd(ends[1]), nullptr, kLimit, false);
      return;
    }
    const auto deadline = Deadline::after(std::chrono::seconds(10));
    const auto listener = listen_tcp({"127.0.0.1", 0});
    raw_ = connect_tcp({"127.0.0.1", local_port(listener)}, deadline);
    receiver_ =
        std::make_unique<Connection>(accept_connection(listener, deadline), nullptr, kLimit, false);
  }
  Connection& sender() {
    if (!sender_) {
      sender_ = std::make_unique<Connection>(std::move(raw_), nullptr, kLimit, false);
      if (family_ == Family::kRings) sender_->offer_rings();
    }
    return *sender_;
  }
  // Sends and receives in turn until `count` frames have arrived.
  void carry(std::size_t count) {
    EXPECT_TRUE(harness::wait_until(
        [&] {
          EXPECT_TRUE(sender().flush());
          EXPECT_TRUE(receiver_->receive(arrived_));
          return arrived_.frames.size() >= count;
        },
        Deadline::after(std::chrono::seconds(30)), std::chrono::microseconds(100)));
    EXPECT_EQ(arrived_.frames.size(), count);
    EXPECT_FALSE(sender().has_unsent());
  }
  void send_raw(std::span<const std::byte> bytes) {
    send_all(raw_, bytes, Deadline::after(std::chrono::seconds(5)));
  }
  // Bytes that were sent over TCP may take some time to arrive.
  void expect_corrupt(const std::vector<std::string>& words) {
    const auto deadline = Deadline::after(std::chrono::seconds(30));
    expect_error(ErrorCode::kCorrupt, words, [&] {
      while (receiver_->receive(arrived_) && !deadline.expired()) std::this_thread::yield();
    });
  }

  const Family family_;
  Fd raw_;
  std::unique_ptr<Connection> sender_, receiver_;
  Arrived arrived_;
  std::atomic<int> num_late_{0};
};

class EachFamily : public Pair, public testing::WithParamInterface<Family> {
 protected:
  EachFamily() : Pair(GetParam()) {}
};
std::string name_of(const testing::TestParamInfo<Family>& family) {
  static constexpr const char* kNames[] = {"unix", "rings", "tcp"};
  return kNames[static_cast<int>(family.param)];
}
INSTANTIATE_TEST_SUITE_P(Over, EachFamily,
                         testing::Values(Family::kUnix, Family::kRings, Family::kTcp), name_of);
class OverRings : public Pair {
 protected:
  OverRings() : Pair(Family::kRings) {}
};
class WithMemory : public Pair {
 protected:
  WithMemory() : Pair(Family::kUnix) {}
};
class WithoutMemory : public Pair {
 protected:
  WithoutMemory() : Pair(Family::kTcp) {}
};

OutgoingPointer text_of(std::size_t count) {
  Text text;
  text.bytes.resize(count);
  std::iota(text.bytes.begin(), text.bytes.end(), std::uint8_t{1});
  return make_outgoing(std::move(text));
}

TEST_P(EachFamily, messages_of_all_sizes_arrive_in_order) {
  const std::vector<std::size_t> counts = {0,       1,       100,       16'000,    16'384,
                                           20'000,  65'536,  262'100,   262'144,   262'145,
                                           300'000, 524'288, 5'000'000, 1'000'001, 0};
  CallNumber number = 0;
  for (const std::size_t count : counts) {
    sender().queue({.kind = FrameKind::kRequest, .number = ++number}, text_of(count));
  }
  sender().queue({.kind = FrameKind::kGoodbye});
  carry(counts.size() + 1);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(arrived_.frames[i].frame.number, i + 1);
    EXPECT_EQ(arrived_.frames[i].bytes, text_of(counts[i])->writer().copy()) << counts[i];
  }
  EXPECT_EQ(arrived_.frames.back().frame.kind, FrameKind::kGoodbye);
}

TEST_F(WithoutMemory, an_urgent_frame_overtakes_what_waits) {
  sender().queue({.kind = FrameKind::kRequest, .number = 1}, text_of(20'000'000));
  EXPECT_TRUE(sender().flush());
  EXPECT_TRUE(sender().has_unsent());
  sender().queue_urgent({.kind = FrameKind::kRenew, .session = 7});
  carry(2);
  EXPECT_EQ(arrived_.frames[0].frame.kind, FrameKind::kRenew);
  EXPECT_EQ(arrived_.frames[0].frame.session, 7U);
  EXPECT_EQ(arrived_.frames[1].bytes, text_of(20'000'000)->writer().copy());
}

TEST_F(WithoutMemory, a_message_whose_owner_wants_it_back_is_copied) {
  auto message = text_of(3'000'000);
  const auto expected = message->writer().copy();
  sender().queue({.kind = FrameKind::kRequest, .number = 1}, message);
  EXPECT_TRUE(sender().flush());
  sender().own(*message);
  EXPECT_EQ(message.use_count(), 1);
  message.reset();
  carry(1);
  EXPECT_EQ(arrived_.frames[0].bytes, expected);
}

// Another thread may be about to flush it.
TEST_F(WithoutMemory, a_connection_that_was_shut_down_no_longer_reads_its_messages) {
  const auto message = text_of(20'000'000);
  sender().queue({.kind = FrameKind::kRequest, .number = 1}, message);
  EXPECT_TRUE(sender().flush());
  EXPECT_TRUE(sender().has_unsent());
  sender().shut_down();
  EXPECT_EQ(message.use_count(), 1);
  sender().queue({.kind = FrameKind::kRequest, .number = 2}, message);
  EXPECT_FALSE(sender().flush());
  EXPECT_EQ(message.use_count(), 1);
}

TEST_P(EachFamily, what_no_worker_sends_breaks_the_connection) {
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
      {with(0, 0x43504c02, 4), "begins with 0x43504c02"},  // another version of the protocol
      {with(4, 77, 1), "kind 77"},
      {with(5, 9, 1), "effect 9"},
      {with(6, 99, 1), "status 99"},
      {with(7, 0x80, 1), "flags 0x80"},
      {with(8, 1, 4), "frame 1 instead of frame 0"},  // a frame is missing or out of order
      {with(12, 0xffff'ffff, 4), "limit is"},
      {encode({.kind = FrameKind::kPart, .length = 5}), "part of 5 bytes outside of a message"},
      {encode({.kind = FrameKind::kRenew, .flags = Frame::kUrgent, .length = 5}), "urgent"},
      {encode({.kind = FrameKind::kRequest, .flags = Frame::kInMemory, .length = 0}), "ticket"},
      {encode({.kind = FrameKind::kRequest, .flags = Frame::kInArea, .length = 0}), "never shared"},
      {encode({.kind = FrameKind::kArea}), "unexpected shared memory"},
  };
  for (const auto& [bytes, word] : cases) {
    connect();
    send_raw(bytes);
    expect_corrupt({word});
  }
}

TEST_P(EachFamily, a_frame_that_comes_twice_breaks_the_connection) {
  const auto frame = encode({.kind = FrameKind::kAcknowledge});
  send_raw(frame);
  send_raw(frame);
  expect_corrupt({"frame 0 instead of frame 1"});
  EXPECT_EQ(arrived_.frames.size(), 1U);
}

TEST_P(EachFamily, the_parts_of_a_message_are_counted) {
  send_raw(encode({.kind = FrameKind::kRequest, .flags = Frame::kInParts, .length = 10}));
  send_raw(encode({.kind = FrameKind::kPart, .counter = 1, .length = 11}));
  expect_corrupt({"part of 11 bytes"});
}

TEST_P(EachFamily, another_frame_within_the_parts_of_a_message_breaks_the_connection) {
  send_raw(encode({.kind = FrameKind::kRequest, .flags = Frame::kInParts, .length = 10}));
  send_raw(encode({.kind = FrameKind::kGoodbye, .counter = 1}));
  expect_corrupt({"within a message"});
}

TEST_P(EachFamily, a_ticket_is_good_once_and_only_in_its_process) {
  const std::uint64_t ticket = 0x1234'5678'9abc;
  send_raw(
      encode({.kind = FrameKind::kRequest, .flags = Frame::kInMemory, .length = sizeof ticket}));
  send_raw(std::as_bytes(std::span(&ticket, 1)));
  expect_corrupt({"ticket"});
}

// ---- rings of shared memory ----

TEST_F(OverRings, both_directions_go_on_while_the_other_end_does_not_read) {
  constexpr CallNumber kCount = 3000;  // frames of 200 bytes: several times the room of a ring
  Arrived back;
  for (CallNumber number = 1; number <= kCount; ++number) {
    sender().queue({.kind = FrameKind::kRequest, .number = number}, text_of(100));
  }
  EXPECT_TRUE(sender().flush());
  EXPECT_TRUE(sender().has_unsent());
  EXPECT_TRUE(receiver_->receive(arrived_));
  for (CallNumber number = 1; number <= kCount; ++number) {
    receiver_->queue({.kind = FrameKind::kReply, .number = number}, text_of(100));
  }
  EXPECT_TRUE(receiver_->flush());
  EXPECT_TRUE(receiver_->has_unsent());
  // Each end only calls receive(), which also notices new room.
  EXPECT_TRUE(harness::wait_until(
      [&] {
        EXPECT_TRUE(sender().receive(back));
        EXPECT_TRUE(receiver_->receive(arrived_));
        return arrived_.frames.size() == kCount && back.frames.size() == kCount;
      },
      Deadline::after(std::chrono::seconds(30)), std::chrono::microseconds(100)));
  for (CallNumber number = 1; number <= kCount; ++number) {
    EXPECT_EQ(arrived_.frames[number - 1].frame.number, number);
    EXPECT_EQ(back.frames[number - 1].frame.number, number);
  }
}

// Two threads that sleep while they have nothing to receive: without the doorbell they would stop.
TEST_F(OverRings, whoever_sleeps_is_woken) {
  constexpr CallNumber kCount = 20'000;
  const auto deadline = Deadline::after(std::chrono::seconds(120));
  sender();
  const auto send = [&](Connection& end, CallNumber number) {
    end.queue({.kind = FrameKind::kRequest, .number = number}, text_of(number % 600));
    EXPECT_TRUE(end.flush());
  };
  const auto receive = [&](Connection& end, Arrived& arrived, CallNumber number) {
    const auto before = std::chrono::steady_clock::now();
    while (arrived.frames.size() < number && !deadline.expired()) {
      EXPECT_TRUE(end.receive(arrived, &deadline));
    }
    // A wait this long ended by its time limit, not by the doorbell.
    if (std::chrono::steady_clock::now() - before >= Connection::kLongestWait) ++num_late_;
  };
  Arrived back;
  std::thread other([&] {
    for (CallNumber number = 1; number <= kCount && !deadline.expired(); ++number) {
      receive(*receiver_, arrived_, number);
      if (number % 2 == 0) receiver_->look_without_bell();
      send(*receiver_, number);
    }
  });
  for (CallNumber number = 1; number <= kCount && !deadline.expired(); ++number) {
    send(sender(), number);
    receive(sender(), back, number);
  }
  other.join();
  EXPECT_EQ(arrived_.frames.size(), kCount);
  EXPECT_EQ(back.frames.size(), kCount);
  EXPECT_LT(num_late_, 20);  // on a busy machine
}

TEST_F(OverRings, a_reader_that_looks_by_itself_is_not_rung_for) {
  const auto send = [&](CallNumber number) {
    sender().queue({.kind = FrameKind::kRequest, .number = number}, text_of(10));
    EXPECT_TRUE(sender().flush());
  };
  const auto has_bell = [&] {
    pollfd entry{.fd = receiver_->socket(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 1;
  };
  send(1);
  carry(1);
  send(2);
  EXPECT_TRUE(has_bell());
  carry(2);
  receiver_->look_without_bell();
  send(3);
  EXPECT_FALSE(has_bell());
  const auto deadline = Deadline::after(std::chrono::seconds(30));
  EXPECT_TRUE(receiver_->receive(arrived_, &deadline));
  EXPECT_EQ(arrived_.frames.size(), 3U);
  send(4);  // receive() has announced the reader again
  EXPECT_TRUE(has_bell());
}

TEST_F(OverRings, what_was_sent_before_the_end_arrives) {
  sender().queue({.kind = FrameKind::kRequest, .number = 1}, text_of(500));
  sender().queue({.kind = FrameKind::kRequest, .number = 2}, text_of(100'000));
  EXPECT_TRUE(sender().flush());
  sender_.reset();
  EXPECT_FALSE(receiver_->receive(arrived_) && receiver_->receive(arrived_));
  ASSERT_EQ(arrived_.frames.size(), 2U);
  EXPECT_EQ(arrived_.frames[1].bytes, text_of(100'000)->writer().copy());
}

TEST_F(WithMemory, rings_come_first_or_not_at_all) {
  const auto rings = encode({.kind = FrameKind::kRings});
  send_raw(rings);  // without the descriptor that belongs to it
  expect_corrupt({"unexpected rings of shared memory"});
  connect();
  const Fd file(::memfd_create("not rings", MFD_CLOEXEC));
  const int descriptor = file.get();
  EXPECT_GT(send_with_descriptors(raw_.get(), rings, std::span(&descriptor, 1)), 0);
  expect_corrupt({"shared memory cannot be used"});
  connect();
  send_raw(encode({.kind = FrameKind::kAcknowledge}));
  const auto second = encode({.kind = FrameKind::kRings, .counter = 1});
  EXPECT_GT(send_with_descriptors(raw_.get(), second, std::span(&descriptor, 1)), 0);
  expect_corrupt({"unexpected rings"});
}

// ---- large messages by reference ----

TEST_F(WithMemory, what_the_program_keeps_is_not_written_again) {
  arrived_.keeps = true;
  for (CallNumber number = 1; number <= 30; ++number) {
    sender().queue({.kind = FrameKind::kRequest, .number = number}, text_of(100'000 * number));
    carry(number);
    if (number % 3 == 0) arrived_.kept.erase(arrived_.kept.begin());
  }
  for (const Payload& payload : arrived_.kept) {
    const auto bytes = payload.bytes();
    const auto same = [&](const Arrived::One& one) { return std::ranges::equal(one.bytes, bytes); };
    EXPECT_TRUE(std::ranges::any_of(arrived_.frames, same));
  }
  for (const auto& one : arrived_.frames) {
    EXPECT_EQ(one.bytes, text_of(100'000 * one.frame.number)->writer().copy());
  }
}

TEST_F(WithMemory, what_finds_no_room_goes_through_the_socket) {
  arrived_.keeps = true;
  constexpr std::size_t kCount = 4, kEach = 20'000'000;  // together more than an area holds
  static_assert(kCount * kEach > kAreaBytes);
  for (CallNumber number = 1; number <= kCount; ++number) {
    sender().queue({.kind = FrameKind::kRequest, .number = number}, text_of(kEach));
  }
  carry(kCount);
  for (const auto& one : arrived_.frames) {
    EXPECT_EQ(one.bytes, text_of(kEach)->writer().copy()) << one.frame.number;
  }
}

TEST_F(WithMemory, a_message_outlives_its_connection) {
  arrived_.keeps = true;
  sender().queue({.kind = FrameKind::kRequest, .number = 1}, text_of(1'000'000));
  carry(1);
  sender_.reset();
  receiver_.reset();
  EXPECT_TRUE(std::ranges::equal(std::as_const(arrived_.kept.at(0)).bytes(),
                                 text_of(1'000'000)->writer().copy()));
}

TEST_F(WithMemory, a_place_where_no_message_lies_breaks_the_connection) {
  const auto area = SentArea::make();
  ASSERT_NE(area, nullptr);
  const auto there = area->put(text_of(1000)->writer());
  ASSERT_TRUE(there);
  const struct {
    AreaPlace place;
    const char* word;
  } cases[] = {
      {{1, 10}, "there is none"},
      {{64, 10}, "there is none"},
      {{kAreaBytes, 10}, "there is none"},
      {{~std::uint64_t{63}, 10}, "there is none"},
      {{0, kAreaBytes - 63}, "there is none"},
      {{0, kLimit + 1}, "limit is"},
      {{0, ~std::uint64_t{0}}, "limit is"},
  };
  for (const auto& [place, word] : cases) {
    connect();
    const int descriptor = area->descriptor();
    const auto header = encode({.kind = FrameKind::kArea});
    ASSERT_EQ(send_with_descriptors(raw_.get(), header, std::span(&descriptor, 1)),
              static_cast<ssize_t>(header.size()));
    send_raw(encode({.kind = FrameKind::kRequest,
                     .flags = Frame::kInArea,
                     .counter = 1,
                     .length = sizeof place}));
    send_raw(std::as_bytes(std::span(&place, 1)));
    expect_corrupt({word});
  }
}

TEST_F(WithMemory, a_file_whose_size_may_change_is_no_area) {
  const Fd file(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(kAreaBytes)), 0);
  const int descriptor = file.get();
  const auto header = encode({.kind = FrameKind::kArea});
  ASSERT_GT(send_with_descriptors(raw_.get(), header, std::span(&descriptor, 1)), 0);
  expect_corrupt({"shared memory cannot be used"});
}

TEST(Area, room_that_was_read_is_used_again) {
  const auto area = SentArea::make();
  ASSERT_NE(area, nullptr);
  const auto received = std::make_shared<ReceivedArea>(Fd(::dup(area->descriptor())));
  const auto message = text_of(20'000'000);
  std::vector<Payload> kept;
  for (int i = 0; i < 3; ++i) kept.push_back(received->take(area->put(message->writer()).value()));
  EXPECT_FALSE(area->put(message->writer()));
  kept.erase(kept.begin() + 1);
  const auto place = area->put(message->writer());
  ASSERT_TRUE(place);
  EXPECT_GT(place->offset, 0U);
  EXPECT_LT(place->offset, 40'000'000U);
  EXPECT_FALSE(area->put(message->writer()));
}

}  // namespace
}  // namespace paceline::rpc::connection
