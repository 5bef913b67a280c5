#include "paceline/engine/transport/message_streams.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/engine/transport/connect_fixture.h"
#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Two ranks on one host that share memory.
class MessageStreamsTest : public ConnectTest {
 protected:
  struct Rank {
    std::unique_ptr<Mesh> mesh;
    std::shared_ptr<SharedBlocks> blocks;
    std::unique_ptr<MessageStreams> streams;
  };

  void SetUp() override {
    std::array<std::future<Rank>, 2> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks[static_cast<std::size_t>(rank)] = std::async(std::launch::async, [this, rank] {
        Rank made;
        made.mesh = connect_mesh(options(rank, 2), secret_);
        made.blocks = made.mesh->shared_memory()->allocate(MessageStreams::bytes_for(2),
                                                           Pages::kOnTouch, Deadline::after(10s));
        made.streams = std::make_unique<MessageStreams>(*made.mesh, RingMemory{made.blocks, 0});
        return made;
      });
    }
    for (std::size_t i = 0; i < 2; ++i) ranks_[i] = ranks[i].get();
  }

  MessageStreams& streams(std::size_t rank) { return *ranks_[rank].streams; }
  std::string receive(std::size_t rank, std::size_t most) {
    std::string text(most, '\0');
    const auto got = streams(rank).receive(rank == 0 ? 1 : 0,
                                           std::as_writable_bytes(std::span(text.data(), most)));
    if (got < 0) return errno == EAGAIN ? "nothing" : "error";
    return got == 0 ? "end" : text.substr(0, static_cast<std::size_t>(got));
  }
  // Fills the ring; returns the number of bytes that it took.
  std::size_t fill(std::size_t rank) {
    const std::vector<std::byte> piece(10'000);
    std::size_t taken = 0;
    for (;;) {
      const auto sent = streams(rank).send(rank == 0 ? 1 : 0, {}, piece);
      if (sent < 0) return taken;
      taken += static_cast<std::size_t>(sent);
    }
  }
  void leave(std::size_t rank) { ranks_[rank] = {}; }
  // After this, rank 0's memory is not the memory that it named to rank 1.
  void forget_token() { ranks_[1].blocks->of(1)[512] ^= std::byte{2}; }

  std::array<Rank, 2> ranks_;
};

TEST_P(MessageStreamsTest, head_and_payload_arrive_in_order_and_stay_when_looked_at) {
  EXPECT_EQ(receive(1, 10), "nothing");
  EXPECT_EQ(streams(0).send(1, bytes_of("head "), bytes_of("payload")), 12);
  std::array<char, 4> seen{};
  EXPECT_EQ(streams(1).peek(0, std::as_writable_bytes(std::span(seen))), 4);
  EXPECT_EQ(std::string_view(seen.data(), seen.size()), "head");
  EXPECT_EQ(receive(1, 7), "head pa");
  EXPECT_EQ(receive(1, 100), "yload");
  EXPECT_EQ(receive(1, 100), "nothing");
  EXPECT_EQ(receive(0, 100), "nothing");  // the other direction has its own ring
}

TEST_P(MessageStreamsTest, a_stream_of_any_pieces_is_the_same_at_the_other_end) {
  constexpr std::size_t kBytes = 3'000'001;  // many times the size of the ring
  std::vector<std::byte> sent(kBytes), got(kBytes);
  std::mt19937 random(7);
  for (auto& byte : sent) byte = static_cast<std::byte>(random());
  const std::jthread writer([&] {
    std::mt19937 sizes(harness::random_seed());
    for (std::size_t at = 0; at < kBytes;) {
      const std::size_t head = std::min<std::size_t>(sizes() % 100, kBytes - at);
      const std::size_t rest = std::min<std::size_t>(sizes() % 70'000, kBytes - at - head);
      if (head + rest == 0) continue;
      const auto all = std::span<const std::byte>(sent).subspan(at, head + rest);
      const auto count = streams(0).send(1, all.first(head), all.subspan(head));
      count > 0 ? at += static_cast<std::size_t>(count) : (std::this_thread::yield(), at);
    }
  });
  std::mt19937 sizes(harness::random_seed() + 1);
  for (std::size_t at = 0; at < kBytes;) {
    const std::size_t most = std::min<std::size_t>(1 + sizes() % 50'000, kBytes - at);
    const auto count = streams(1).receive(0, std::span(got).subspan(at, most));
    count > 0 ? at += static_cast<std::size_t>(count) : (std::this_thread::yield(), at);
  }
  EXPECT_EQ(sent, got);
}

TEST_P(MessageStreamsTest, a_full_ring_takes_more_once_the_other_end_has_read) {
  const std::size_t capacity = fill(0);
  EXPECT_GT(capacity, 0u);
  EXPECT_EQ(streams(0).send(1, bytes_of("x"), {}), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(receive(1, 5).size(), 5u);
  EXPECT_EQ(streams(0).send(1, bytes_of("abcdefgh"), {}), 5);
}

TEST_P(MessageStreamsTest, a_sleeper_is_woken_by_bytes_and_by_room) {
  const auto sleeps_until = [&](std::size_t rank, short events, const auto& action) {
    std::array<Interest, 1> interests = {
        Interest{rank == 0 ? 1 : 0, Channel::kPointToPoint, events}};
    EXPECT_TRUE(streams(rank).prepare_to_sleep(interests));
    const std::jthread other(action);
    const auto begin = std::chrono::steady_clock::now();
    streams(rank).sleep(interests, 30s);
    streams(rank).awake(interests);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  };
  sleeps_until(1, POLLIN, [&] { streams(0).send(1, bytes_of("a"), {}); });
  EXPECT_EQ(receive(1, 10), "a");
  fill(0);
  sleeps_until(0, POLLOUT, [&] { receive(1, 1); });
  EXPECT_EQ(streams(0).send(1, bytes_of("b"), {}), 1);
}

TEST_P(MessageStreamsTest, no_rank_sleeps_with_bytes_or_room_at_hand) {
  std::array<Interest, 1> reading = {Interest{0, Channel::kPointToPoint, POLLIN}};
  streams(0).send(1, bytes_of("a"), {});
  EXPECT_FALSE(streams(1).prepare_to_sleep(reading));
  std::array<Interest, 1> writing = {Interest{1, Channel::kPointToPoint, POLLOUT}};
  EXPECT_FALSE(streams(0).prepare_to_sleep(writing));
}

TEST_P(MessageStreamsTest, bytes_sent_before_a_ranks_end_are_read_before_it) {
  streams(0).send(1, bytes_of("last words"), {});
  leave(0);
  std::array<Interest, 1> interests = {Interest{0, Channel::kPointToPoint, POLLIN}};
  EXPECT_FALSE(streams(1).prepare_to_sleep(interests));
  EXPECT_EQ(receive(1, 100), "last words");
  interests[0].events = POLLIN;
  EXPECT_TRUE(streams(1).prepare_to_sleep(interests));
  streams(1).sleep(interests, 10s);
  streams(1).awake(interests);
  EXPECT_EQ(receive(1, 100), "end");
  EXPECT_EQ(streams(1).send(0, bytes_of("too late"), {}), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_P(MessageStreamsTest, a_position_that_cannot_be_is_an_error_and_no_read_behind_the_ring) {
  // Overwrites the position up to which rank 0 has written.
  std::memset(ranks_[1].blocks->of(1), 0x7f, 8);
  try {
    receive(1, 100);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 0"));
  }
}

// Payloads that the receiver reads directly from the sender's memory.
class OfferTest : public MessageStreamsTest {
 protected:
  using Offered = MessageStreams::Offered;

  // Rank 1 first tries to receive, like a receiver that waits; from then on rank 0 can offer.
  void SetUp() override {
    MessageStreamsTest::SetUp();
    EXPECT_FALSE(streams(0).can_offer(1));
    EXPECT_EQ(receive(1, 1), "nothing");
    ASSERT_TRUE(streams(0).can_offer(1));
  }
  std::uint64_t offer() {
    streams(0).offer(1);
    return std::bit_cast<std::uintptr_t>(payload_.data());
  }
  void read(std::uint64_t address) {
    for (std::size_t at = 0; at < got_.size();) {
      at += streams(1).read_offered(0, address + at, std::span(got_).subspan(at)).value();
    }
  }
  static ErrorCode code_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 0"));
      return error.code();
    }
    return {};
  }

  const std::vector<std::byte> payload_ = std::vector<std::byte>(1'000'003, std::byte{42});
  std::vector<std::byte> got_ = std::vector<std::byte>(payload_.size());
};

TEST_P(OfferTest, is_read_where_it_lies_and_taken_once) {
  for (int round = 0; round < 3; ++round) {
    got_.assign(got_.size(), std::byte{});
    const std::uint64_t address = offer();
    EXPECT_EQ(streams(0).offered(1), Offered::kOpen);
    read(address);
    EXPECT_EQ(got_, payload_);
    EXPECT_EQ(streams(0).offered(1), Offered::kOpen);
    EXPECT_TRUE(streams(1).take(0));
    EXPECT_EQ(streams(0).offered(1), Offered::kTaken);
  }
}

TEST_P(OfferTest, that_is_withdrawn_is_not_taken) {
  read(offer());
  streams(0).withdraw(1);
  EXPECT_EQ(code_of([&] { streams(1).take(0); }), ErrorCode::kPeerLost);
}

TEST_P(OfferTest, of_memory_that_cannot_be_read_is_refused) {
  offer();
  EXPECT_FALSE(streams(1).read_offered(0, 4096, got_));
  EXPECT_EQ(streams(0).offered(1), Offered::kRefused);
  EXPECT_EQ(streams(0).send(1, bytes_of("through the ring"), {}), 16);
  EXPECT_EQ(receive(1, 100), "through the ring");
}

TEST_P(OfferTest, of_a_process_that_has_ended_is_refused_for_good) {
  const std::uint64_t address = offer();
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  // Writes the number of another process as the sender's: it is at offset 528, after token and
  // address.
  const std::int64_t number = child;
  std::memcpy(ranks_[1].blocks->of(1) + 528, &number, sizeof number);
  EXPECT_FALSE(streams(1).read_offered(0, address, got_));
  EXPECT_FALSE(streams(0).can_offer(1));  // not again; the stream shows the peer's end
}

// After exec() the same process has different memory.
TEST_P(OfferTest, of_a_process_that_is_another_program_by_now_is_not_taken) {
  read(offer());
  forget_token();
  EXPECT_FALSE(streams(1).take(0));
  EXPECT_EQ(streams(0).offered(1), Offered::kRefused);
}

TEST_P(OfferTest, that_is_taken_wakes_its_sender_and_a_reader_does_not_sleep) {
  const std::uint64_t address = offer();
  std::array<Interest, 1> writing = {Interest{1, Channel::kPointToPoint, POLLOUT}};
  EXPECT_TRUE(streams(0).prepare_to_sleep(writing));  // it does not wait for room
  std::jthread reader([&] {
    EXPECT_GT(streams(1).read_offered(0, address, got_).value(), 0u);
    std::array<Interest, 1> reading = {Interest{0, Channel::kPointToPoint, POLLIN}};
    EXPECT_FALSE(streams(1).prepare_to_sleep(reading));
    read(address);
    EXPECT_TRUE(streams(1).take(0));
  });
  const auto begin = std::chrono::steady_clock::now();
  streams(0).sleep(writing, 30s);
  streams(0).awake(writing);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  reader.join();
  EXPECT_EQ(streams(0).offered(1), Offered::kTaken);
}

TEST_P(OfferTest, that_is_refused_lets_no_rank_sleep) {
  offer();
  EXPECT_FALSE(streams(1).read_offered(0, 4096, got_));
  std::array<Interest, 1> writing = {Interest{1, Channel::kPointToPoint, POLLOUT}};
  EXPECT_FALSE(streams(0).prepare_to_sleep(writing));
}

TEST_P(OfferTest, whose_header_did_not_fit_waits_for_room) {
  offer();
  fill(0);
  std::array<Interest, 1> writing = {Interest{1, Channel::kPointToPoint, POLLOUT}};
  EXPECT_EQ(receive(1, 10).size(), 10u);
  EXPECT_FALSE(streams(0).prepare_to_sleep(writing));
}

// Rank 1 cannot read rank 0 because its token does not match. The result is the same if the kernel
// does not let it read.
TEST_P(MessageStreamsTest, nothing_is_offered_to_a_rank_that_cannot_read_it) {
  forget_token();
  EXPECT_EQ(receive(1, 1), "nothing");
  EXPECT_FALSE(streams(0).can_offer(1));
  EXPECT_EQ(receive(0, 1), "nothing");
  EXPECT_TRUE(streams(1).can_offer(0));
}

TEST(MessageStreamsSizeTest, a_block_stays_small_also_with_many_ranks) {
  EXPECT_LT(MessageStreams::bytes_for(2), 1u << 20);
  EXPECT_LE(MessageStreams::bytes_for(256), 5u << 20);
}

INSTANTIATE_TEST_SUITE_P(Transports, MessageStreamsTest,
                         testing::Values(TransportKind::kShm, TransportKind::kLoopback),
                         name_of_transport);

INSTANTIATE_TEST_SUITE_P(Transports, OfferTest,
                         testing::Values(TransportKind::kShm, TransportKind::kLoopback),
                         name_of_transport);

}  // namespace
}  // namespace paceline
