#include <array>
#include <memory>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using namespace std::chrono_literals;

class PointToPointTest : public testing::TestWithParam<TransportKind> {
 protected:
  void run(int world, const harness::RankBody& body) {
    run_ranks_ok(world, body, {.transport = GetParam()});
  }
};

TEST_P(PointToPointTest, large_messages_in_both_directions_at_once) {
  run(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    std::vector<std::int64_t> mine(1'000'000), theirs(mine.size());
    std::iota(mine.begin(), mine.end(), group.rank());
    const auto sent = group.send_async(std::span(mine), other);
    const auto received = group.recv_async(std::span(theirs), other);
    sent->wait();
    received->wait();
    EXPECT_EQ(theirs.front(), other);
    EXPECT_EQ(theirs.back(), other + 999'999);
  });
}

TEST_P(PointToPointTest, tags_match_out_of_order_and_messages_of_one_tag_keep_theirs) {
  run(2, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      for (const int value : {1, 2, 3}) group.send(std::span(&value, 1), 1, 7);
      const int special = 99;
      group.send(std::span(&special, 1), 1, 8);
      return;
    }
    int value = 0;
    group.recv(std::span(&value, 1), 0, 8);
    EXPECT_EQ(value, 99);
    for (const int expected : {1, 2, 3}) {
      group.recv(std::span(&value, 1), 0, 7);
      EXPECT_EQ(value, expected);
    }
  });
}

TEST_P(PointToPointTest, any_source_says_who_sent) {
  run(4, [](ProcessGroup& group) {
    if (group.rank() != 0) {
      const int value = group.rank() * 10;
      group.send(std::span(&value, 1), 0);
      return;
    }
    int sum = 0;
    for (int i = 0; i < 3; ++i) {
      int value = 0;
      const int source = group.recv(std::span(&value, 1), kAnySource);
      EXPECT_EQ(value, source * 10);
      sum += source;
    }
    EXPECT_EQ(sum, 6);
  });
}

TEST_P(PointToPointTest, runs_beside_collectives) {
  run(3, [](ProcessGroup& group) {
    const int next = (group.rank() + 1) % 3;
    const int previous = (group.rank() + 2) % 3;
    for (int i = 0; i < 50; ++i) {
      int from_previous = -1;
      const int mine = group.rank() * 1000 + i;
      const auto received = group.recv_async(std::span(&from_previous, 1), previous);
      const auto sent = group.send_async(std::span(&mine, 1), next);
      EXPECT_EQ(all_reduce_value(group, 1), 3);
      received->wait();
      sent->wait();
      EXPECT_EQ(from_previous, previous * 1000 + i);
    }
  });
}

TEST_P(PointToPointTest, what_a_message_kept_alive_is_free_once_the_group_has_failed) {
  run(2, [](ProcessGroup& group) {
    std::array<int, 3> values{};
    if (group.rank() == 1) {
      group.send(std::span(values), 0, 5);
      group.send(std::span(values), 0, 6);
      EXPECT_THROW(group.recv(std::span(values), 0), Error);  // rank 0 fails
      return;
    }
    auto kept = std::make_shared<std::array<int, 3>>();
    const std::weak_ptr<std::array<int, 3>> seen = kept;
    const auto never =
        group.recv_async(std::span(*kept), 1, 1, {.timeout = {}, .keep_alive = kept});
    kept.reset();
    group.recv(std::span(values), 1, 6);  // the one before it has come, too, and waits
    EXPECT_THROW(group.recv(std::span(values).first(2), 1, 5), Error);
    EXPECT_THROW(never->wait(), Error);
    EXPECT_TRUE(seen.expired());
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, PointToPointTest,
                         testing::Values(TransportKind::kLoopback, TransportKind::kTcp),
                         [](const auto& info) {
                           return std::string(info.param == TransportKind::kTcp ? "tcp" : "local");
                         });

}  // namespace
}  // namespace paceline
