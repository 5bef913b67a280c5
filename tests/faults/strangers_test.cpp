// Peers that know the secret and send nonsense, and jobs that run side by side.

#include <bit>
#include <thread>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/paceline/point_to_point.h"

#include "tests/harness/raw_mesh.h"
#include "tests/harness/thread_ranks.h"
#include "tests/harness/watchdog.h"

namespace paceline {
namespace {

using harness::make_raw_mesh;
using harness::run_ranks_ok;
using harness::Watchdog;
using namespace std::chrono_literals;

// A receive of one float from rank 1, tag 0.
PointToPointCall one_float(float& value) {
  return {.peer = 1,
          .dtype = Dtype::kFloat32,
          .count = 1,
          .data = reinterpret_cast<std::byte*>(&value)};
}

MessageHeader header_of(std::uint32_t tag, std::uint64_t bytes) {
  MessageHeader header;
  header.tag = tag;
  header.payload_bytes = bytes;
  Fingerprint fingerprint;
  fingerprint.op = Op::kSend;
  fingerprint.dtype = Dtype::kFloat32;
  fingerprint.count = bytes / 4;
  header.fingerprint = std::bit_cast<FingerprintWords>(fingerprint);
  return header;
}

std::optional<Error> error_of(const WorkPtr& work) {
  try {
    work->wait(10s);
  } catch (const Error& error) {
    return error;
  }
  return {};
}

class HostilePeer : public testing::Test {
 protected:
  Watchdog watchdog_{30s, "a message from a hostile peer"};
  float value_ = 0;
};

TEST_F(HostilePeer, huge_lengths_wait_for_a_receive_and_take_no_memory) {
  for (const std::uint64_t bytes : {~std::uint64_t(0), ~std::uint64_t(0) - 47,
                                    std::uint64_t(1) << 62, std::uint64_t(65) << 20}) {
    auto raw = make_raw_mesh();
    PointToPoint messages(*raw.mesh, RingMemory());
    const auto header = header_of(7, bytes);
    raw.send(Channel::kPointToPoint, &header, sizeof header);
    const auto error = error_of(messages.receive(one_float(value_), Deadline::after(50ms)));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kTimeout) << error->what();
  }
}

TEST_F(HostilePeer, a_length_that_belies_its_count_is_refused) {
  auto raw = make_raw_mesh();
  PointToPoint messages(*raw.mesh, RingMemory());
  auto header = header_of(0, 4);
  header.payload_bytes = 1 << 20;
  raw.send(Channel::kPointToPoint, &header, sizeof header);
  const auto error = error_of(messages.receive(one_float(value_), Deadline::after(5s)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalid) << error->what();
}

TEST_F(HostilePeer, garbage_is_corrupt) {
  auto raw = make_raw_mesh();
  PointToPoint messages(*raw.mesh, RingMemory());
  const std::string text(100, 'G');
  raw.send(Channel::kPointToPoint, text.data(), text.size());
  EXPECT_EQ(error_of(messages.receive(one_float(value_), Deadline::after(5s)))->code(),
            ErrorCode::kCorrupt);
}

TEST_F(HostilePeer, a_flood_of_empty_messages_ends_at_the_limit) {
  auto raw = make_raw_mesh();
  PointToPoint messages(*raw.mesh, RingMemory());
  const auto work = messages.receive(one_float(value_), Deadline::after(20s));
  const auto header = header_of(7, 0);
  // Sends more headers than the limit allows, so the connection must stop accepting them.
  std::size_t sent = 0;  // bytes
  const auto deadline = Deadline::after(15s);
  const std::size_t most = 2 * MessageQueues::kMaxUnexpectedBytes;
  std::vector<MessageHeader> many(1000, header);
  auto stalled_since = Deadline::Clock::now();
  while (sent < most && !deadline.expired() && Deadline::Clock::now() - stalled_since < 500ms) {
    const std::size_t inside = sent % sizeof header;
    const ssize_t got = ::send(raw.end(Channel::kPointToPoint).get(),
                               reinterpret_cast<const char*>(many.data()) + inside,
                               many.size() * sizeof header - inside, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (got <= 0) continue;
    sent += static_cast<std::size_t>(got);
    stalled_since = Deadline::Clock::now();
  }
  EXPECT_LT(sent, most);
  EXPECT_FALSE(work->is_completed());
}

// The shapes have more dimensions than allowed, sizes that do not match the length of the payload,
// negative sizes, and sizes whose product overflows.
TEST_F(HostilePeer, a_shape_that_is_none_is_refused) {
  using Sizes = std::vector<std::int64_t>;
  const std::int64_t large = std::int64_t{1} << 32;
  for (const Sizes& sizes : {Sizes(9, 1), Sizes{3}, Sizes{-1, -2}, Sizes{large, large, 2}}) {
    auto raw = make_raw_mesh();
    PointToPoint messages(*raw.mesh, RingMemory());
    MessageHeader header = header_of(0, 8);
    auto fingerprint = std::bit_cast<Fingerprint>(header.fingerprint);
    fingerprint.layout = static_cast<std::uint32_t>(sizes.size() + 1);
    header.fingerprint = std::bit_cast<FingerprintWords>(fingerprint);
    const auto work = messages.receive(one_float(value_), Deadline::after(20s));
    raw.send(Channel::kPointToPoint, &header, sizeof header);
    raw.send(Channel::kPointToPoint, sizes.data(), sizes.size() * sizeof sizes[0]);
    const auto error = error_of(work);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt) << error->what();
  }
}

// The receive is posted while a message that does not fit it is still arriving.
TEST_F(HostilePeer, a_mismatch_found_late_completes_the_receive_with_its_error) {
  auto raw = make_raw_mesh();
  PointToPoint messages(*raw.mesh, RingMemory());
  float other = 0;
  PointToPointCall another = one_float(other);
  another.tag = 99;
  const auto keeps_reading = messages.receive(another, Deadline::after(20s));
  const auto header = header_of(0, 8);
  raw.send(Channel::kPointToPoint, &header, sizeof header);
  raw.send(Channel::kPointToPoint, "1234", 4);
  const auto until_half_is_read = Deadline::after(100ms);
  while (!until_half_is_read.expired()) std::this_thread::yield();
  const auto work = messages.receive(one_float(value_), Deadline::after(20s));
  raw.send(Channel::kPointToPoint, "5678", 4);
  const auto error = error_of(work);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalid) << error->what();
  EXPECT_TRUE(error_of(keeps_reading));
}

TEST_F(HostilePeer, death_ends_receives_from_it_and_from_anybody_and_sends_to_it) {
  for (const int source : {1, kAnySource}) {
    auto raw = make_raw_mesh();
    PointToPoint messages(*raw.mesh, RingMemory());
    auto call = one_float(value_);
    call.peer = source;
    const auto work = messages.receive(call, Deadline::after(20s));
    // The peer says goodbye before it dies. Then only the point-to-point socket tells a receive
    // from any rank that the peer has left.
    raw.send(Channel::kControl, "\x7f", 1);
    raw.die();
    const auto error = error_of(work);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kPeerLost) << error->what();
    EXPECT_EQ(error->ranks(), std::vector{1}) << error->what();
  }
  auto raw = make_raw_mesh();
  PointToPoint messages(*raw.mesh, RingMemory());
  std::vector<float> large(4 << 20);
  const auto sent = messages.send({.peer = 1,
                                   .dtype = Dtype::kFloat32,
                                   .count = large.size(),
                                   .data = reinterpret_cast<std::byte*>(large.data())},
                                  Deadline::after(20s));
  raw.die();
  EXPECT_EQ(error_of(sent)->code(), ErrorCode::kPeerLost);
}

TEST_F(HostilePeer, an_abort_ends_a_send_that_is_not_received) {
  auto raw = make_raw_mesh();
  PointToPoint messages(*raw.mesh, RingMemory());
  std::vector<float> large(4 << 20);
  const auto sent = messages.send({.peer = 1,
                                   .dtype = Dtype::kFloat32,
                                   .count = large.size(),
                                   .data = reinterpret_cast<std::byte*>(large.data())},
                                  Deadline::after(20s));
  raw.mesh->abort(Error(ErrorCode::kAborted, "enough"));
  messages.wake();
  EXPECT_STREQ(error_of(sent)->what(), "enough");
}

TEST(Jobs, side_by_side_do_not_mix) {
  std::vector<std::jthread> jobs;
  for (const int job : {1, 1000}) {
    jobs.emplace_back([job] {
      for (const auto transport :
           {TransportKind::kTcp, TransportKind::kShm, TransportKind::kAuto}) {
        run_ranks_ok(3,
                     [&](ProcessGroup& group) {
                       for (int i = 0; i < 200; ++i) {
                         ASSERT_EQ(all_reduce_value(group, job + i), 3 * (job + i));
                       }
                     },
                     {.transport = transport});
      }
    });
  }
}

// Rank 1 frees its block of this region, but the region is still rank 0's buffer.
TEST(Freed, symmetric_memory_of_one_rank_only_is_not_read_in_place) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    constexpr std::size_t kCount = 100'000;
    auto whole = group.allocate_symmetric(2 * kCount * sizeof(float));
    const auto part = group.allocate_symmetric(kCount * sizeof(float));
    if (group.rank() == 0) {
      std::fill(whole.as<float>().begin(), whole.as<float>().end(), 3.0f);
      group.scatter(part.as<float>(), whole.as<float>(), 0);
    } else {
      whole = {};
      group.scatter(part.as<float>(), {}, 0);
    }
    EXPECT_EQ(part.as<float>()[kCount - 1], 3.0f);
    if (group.rank() == 0) {
      group.gather(whole.as<float>(), part.as<float>(), 0);
      EXPECT_EQ(whole.as<float>()[2 * kCount - 1], 3.0f);
    } else {
      group.gather({}, part.as<float>(), 0);
    }
  });
}

}  // namespace
}  // namespace paceline
