// Ranks that are threads of one process: their messages, and that they need no descriptors.

#include <algorithm>
#include <filesystem>
#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/transport/formation/connect.h"
#include "paceline/engine/transport/loopback_wire.h"

#include "tests/engine/transport/numbered_bytes.h"
#include "tests/harness/fetch_from.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::chrono_literals;

std::size_t num_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST(Pipe, what_goes_in_comes_out_whole_however_it_is_cut) {
  const auto sent = numbered(3 * Pipe::kMaxBytes + 17);
  std::vector<std::byte> got;
  Pipe pipe;
  std::size_t done = 0;
  for (std::size_t step = 1; got.size() < sent.size(); step = step * 7 % 99'991) {
    const auto rest = std::span(sent).subspan(done);
    const auto head = rest.first(std::min(step, rest.size()));
    done += pipe.push(head, rest.subspan(head.size()));
    std::vector<std::byte> into(step), seen(step);
    const std::size_t peeked = pipe.peek(seen);
    const auto popped = pipe.pop(into);
    ASSERT_EQ(popped.count, peeked);
    ASSERT_TRUE(
        std::equal(into.begin(), into.begin() + static_cast<std::ptrdiff_t>(peeked), seen.begin()));
    got.insert(got.end(), into.begin(), into.begin() + static_cast<std::ptrdiff_t>(popped.count));
  }
  EXPECT_EQ(got, sent);
}

TEST(Pipe, it_takes_no_more_than_it_may_hold_and_says_when_it_was_full) {
  Pipe pipe;
  const auto bytes = numbered(Pipe::kMaxBytes + 1);
  EXPECT_EQ(pipe.push({}, bytes), Pipe::kMaxBytes);
  EXPECT_TRUE(pipe.is_full());
  EXPECT_EQ(pipe.push({}, bytes), 0u);
  std::vector<std::byte> into(100);
  EXPECT_TRUE(pipe.pop(into).was_full);
  EXPECT_FALSE(pipe.pop(into).was_full);
}

class LoopbackTest : public testing::Test {
 protected:
  ConnectOptions options(int rank, int world) {
    ConnectOptions options;
    options.rank = rank;
    options.world_size = world;
    options.link.transport = TransportKind::kLoopback;
    options.timeout = 10s;
    options.publish = [this, rank](const std::string& value) {
      store_.set(std::to_string(rank), value);
    };
    options.fetch = [this](const auto& ranks, auto wait) {
      return harness::fetch_from(store_, ranks, wait);
    };
    return options;
  }
  std::future<std::unique_ptr<Mesh>> join(const ConnectOptions& options) {
    return std::async(std::launch::async, [=, this] { return connect_mesh(options, secret_); });
  }
  std::vector<std::unique_ptr<Mesh>> form(int world) {
    std::vector<std::future<std::unique_ptr<Mesh>>> joining;
    for (int rank = 0; rank < world; ++rank) joining.push_back(join(options(rank, world)));
    std::vector<std::unique_ptr<Mesh>> meshes;
    for (auto& mesh : joining) meshes.push_back(mesh.get());
    return meshes;
  }
  template <class Call>
  static std::optional<Error> error_of(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    return {};
  }

  MemoryStore store_;
  const Secret secret_ = Secret::generate();
};

TEST_F(LoopbackTest, a_group_takes_no_descriptor) {
  const auto before = num_descriptors();
  const auto meshes = form(16);
  EXPECT_EQ(num_descriptors(), before);
  EXPECT_STREQ(meshes[0]->wire().name(), "loopback");
  EXPECT_EQ(meshes[3]->neighbours().size(), 16u);
  for (const auto& mesh : meshes) EXPECT_TRUE(mesh->throw_if_failed().empty());
}

TEST_F(LoopbackTest, ranks_that_chose_no_transport_take_it_and_close_their_listeners) {
  const auto before = num_descriptors();
  std::vector<std::future<std::unique_ptr<Mesh>>> joining;
  for (int rank = 0; rank < 3; ++rank) {
    auto any = options(rank, 3);
    any.link.transport = TransportKind::kAuto;
    joining.push_back(join(any));
  }
  for (auto& mesh : joining) EXPECT_STREQ(mesh.get()->wire().name(), "loopback");
  EXPECT_EQ(num_descriptors(), before);
}

TEST_F(LoopbackTest, a_rank_that_goes_without_goodbye_is_lost_and_one_that_says_it_has_left) {
  auto meshes = form(3);
  meshes[2].reset();
  EXPECT_EQ(meshes[0]->throw_if_failed(), std::vector<int>{2});
  EXPECT_EQ(meshes[0]->throw_if_failed(), std::vector<int>{2});
  meshes[1]->abort(Error(ErrorCode::kInvalid, "rank 1: odd counts"));
  meshes[1].reset();
  const auto error = error_of([&] { meshes[0]->throw_if_failed(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kAborted);
  EXPECT_NE(std::string(error->what()).find("odd counts"), std::string::npos) << error->what();
}

TEST_F(LoopbackTest, a_wire_that_ends_without_a_word_is_a_lost_peer) {
  const auto room = Room::named("test", 2, secret_);
  auto other = std::make_unique<LoopbackWire>(room, 1);
  std::vector<PeerAddress> peers(2);
  for (auto& peer : peers) peer.host_name = "box";
  Mesh mesh("world", 0, peers, std::make_unique<LoopbackWire>(room, 0));
  EXPECT_TRUE(mesh.throw_if_failed().empty());
  other.reset();
  const auto error = error_of([&] { mesh.throw_if_failed(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kPeerLost);
}

TEST_F(LoopbackTest, what_was_sent_before_the_end_arrives_and_then_the_end) {
  const auto room = Room::named("test", 2, secret_);
  LoopbackWire one(room, 0);
  auto two = std::make_unique<LoopbackWire>(room, 1);
  ASSERT_EQ(two->send(0, Channel::kData, as_bytes(std::string_view("abc")), {}), 3);
  two.reset();
  std::array<std::byte, 8> into{};
  EXPECT_EQ(one.receive(1, Channel::kData, into), 3);
  EXPECT_EQ(one.receive(1, Channel::kData, into), 0);
  EXPECT_EQ(one.send(1, Channel::kData, into, {}), -1);
  EXPECT_EQ(errno, EPIPE);
}

// Both sides sleep and wake each other; a lost wake-up would cost ten seconds.
TEST_F(LoopbackTest, a_waiting_rank_is_woken) {
  const auto room = Room::named("test", 2, secret_);
  LoopbackWire one(room, 0), two(room, 1);
  const auto sent = numbered(8 * Pipe::kMaxBytes);
  const auto begin = std::chrono::steady_clock::now();
  std::jthread sender([&] {
    std::span<const std::byte> rest = sent;
    while (!rest.empty()) {
      const ssize_t taken = two.send(0, Channel::kData, rest, {});
      if (taken > 0) {
        rest = rest.subspan(static_cast<std::size_t>(taken));
        continue;
      }
      Interest room_there{0, Channel::kData, POLLOUT};
      two.wait({&room_there, 1}, 10s);
    }
  });
  std::vector<std::byte> got(sent.size());
  std::size_t done = 0;
  while (done < got.size()) {
    const ssize_t count = one.receive(1, Channel::kData, std::span(got).subspan(done));
    if (count > 0) {
      done += static_cast<std::size_t>(count);
      continue;
    }
    Interest bytes_there{1, Channel::kData, POLLIN};
    one.wait({&bytes_there, 1}, 10s);
  }
  EXPECT_EQ(got, sent);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 9s);
}

TEST_F(LoopbackTest, a_wake_that_came_before_the_wait_is_not_lost) {
  LoopbackWire wire(Room::named("test", 1, secret_), 0);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    wire.wake();
    wire.wait_or_wake({}, {});
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
}

TEST_F(LoopbackTest, another_secret_is_refused) {
  const auto room = Room::named("test", 2, secret_);
  const auto error = error_of([] { Room::named("test", 2, Secret::generate()); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalid);
}

TEST_F(LoopbackTest, a_missing_rank_is_named_and_the_others_are_told) {
  auto first = options(0, 3), second = options(1, 3);
  for (auto* fetching : {&first, &second}) {
    fetching->timeout = 300ms;
    fetching->fetch = [this](auto ranks, auto) {
      // Rank 2 has published its address but never arrives.
      std::replace(ranks.begin(), ranks.end(), 2, 0);
      return harness::fetch_from(store_, ranks, 10s);
    };
  }
  auto one = join(first), two = join(second);
  for (auto* rank : {&one, &two}) {
    const auto error = error_of([&] { rank->get(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->ranks(), std::vector{2}) << error->what();
  }
}

TEST_F(LoopbackTest, ranks_that_chose_different_transports_are_told_so) {
  auto other = options(1, 2);
  other.link.transport = TransportKind::kTcp;
  auto one = join(options(0, 2)), two = join(other);
  for (auto* rank : {&one, &two}) {
    const auto error = error_of([&] { rank->get(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(error->what(), Says("forming.transports_differ"));
  }
}

}  // namespace
}  // namespace paceline
