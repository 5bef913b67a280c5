// One operation on many buffers, over every transport.

#include <gtest/gtest.h>

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using namespace std::chrono_literals;
using List = std::vector<std::vector<float>>;

float value_at(int rank, std::size_t buffer, std::size_t index) {
  return static_cast<float>((index * 7 + buffer * 3 + static_cast<std::size_t>(rank) * 13) % 11);
}

// Empty ones, small ones, and one beyond a window.
const std::vector<std::size_t> kCounts = {1, 0, 63, 4096, 0, 1'200'001, 5};

List list_of(int rank, std::size_t factor = 1) {
  List list;
  for (std::size_t b = 0; b < kCounts.size(); ++b) {
    list.emplace_back(kCounts[b] * factor);
    for (std::size_t i = 0; i < list[b].size(); ++i) list[b][i] = value_at(rank, b, i);
  }
  return list;
}

template <class T>
std::vector<T> views_of(List& list) {
  std::vector<T> views;
  for (auto& buffer : list) views.push_back(Buffer(std::span(buffer)));
  return views;
}

struct Setting {
  TransportKind transport;
  int world;
};

std::string name_of(const Setting& setting) {
  return std::string(name_of(setting.transport)) + "_" + std::to_string(setting.world);
}

class CoalescedTest : public testing::TestWithParam<Setting> {
 protected:
  void run(const harness::RankBody& body) {
    run_ranks_ok(GetParam().world, body, {.transport = GetParam().transport});
  }
  int world() const { return GetParam().world; }
  List total(std::size_t factor = 1) const {
    List sum = list_of(0, factor);
    for (int rank = 1; rank < world(); ++rank) {
      const List part = list_of(rank, factor);
      for (std::size_t b = 0; b < sum.size(); ++b) {
        for (std::size_t i = 0; i < sum[b].size(); ++i) sum[b][i] += part[b][i];
      }
    }
    return sum;
  }
};

TEST_P(CoalescedTest, all_reduce_sums_every_buffer) {
  run([&](ProcessGroup& group) {
    List list = list_of(group.rank());
    group.all_reduce_coalesced(views_of<Buffer>(list));
    ASSERT_EQ(list, total());
    List later = list_of(group.rank());
    group.all_reduce_coalesced_async(views_of<Buffer>(later))->wait();
    ASSERT_EQ(later, list);
  });
}

TEST_P(CoalescedTest, broadcast_gives_everybody_the_roots_buffers) {
  run([&](ProcessGroup& group) {
    const int root = world() - 1;
    List list = list_of(group.rank());
    group.broadcast_coalesced(views_of<Buffer>(list), root);
    ASSERT_EQ(list, list_of(root));
    List later = list_of(group.rank());
    group.broadcast_coalesced_async(views_of<Buffer>(later), 0)->wait();
    ASSERT_EQ(later, list_of(0));
  });
}

TEST_P(CoalescedTest, all_gather_gathers_each_buffer_by_itself) {
  run([&](ProcessGroup& group) {
    const auto size = static_cast<std::size_t>(world());
    List mine = list_of(group.rank());
    List wanted(kCounts.size());
    for (std::size_t b = 0; b < kCounts.size(); ++b) {
      for (int rank = 0; rank < world(); ++rank) {
        for (std::size_t i = 0; i < kCounts[b]; ++i) wanted[b].push_back(value_at(rank, b, i));
      }
    }
    for (const bool later : {false, true}) {
      List all;
      for (const auto count : kCounts) all.emplace_back(count * size);
      const auto inputs = views_of<ConstBuffer>(mine);
      const auto outputs = views_of<Buffer>(all);
      if (later) {
        group.all_gather_coalesced_async(inputs, outputs)->wait();
      } else {
        group.all_gather_coalesced(inputs, outputs);
      }
      ASSERT_EQ(all, wanted);
    }
  });
}

TEST_P(CoalescedTest, reduce_scatter_gives_each_rank_its_block_of_every_sum) {
  run([&](ProcessGroup& group) {
    const auto size = static_cast<std::size_t>(world());
    const auto self = static_cast<std::size_t>(group.rank());
    List input = list_of(group.rank(), size);
    const List sum = total(size);
    for (const bool later : {false, true}) {
      List part;
      for (const auto count : kCounts) part.emplace_back(count);
      const auto inputs = views_of<ConstBuffer>(input);
      const auto outputs = views_of<Buffer>(part);
      if (later) {
        group.reduce_scatter_coalesced_async(inputs, outputs)->wait();
      } else {
        group.reduce_scatter_coalesced(inputs, outputs);
      }
      for (std::size_t b = 0; b < kCounts.size(); ++b) {
        const auto begin = sum[b].begin() + static_cast<std::ptrdiff_t>(self * kCounts[b]);
        ASSERT_EQ(part[b],
                  std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(kCounts[b])));
      }
    }
  });
}

TEST_P(CoalescedTest, no_buffers_are_a_barrier) {
  run([&](ProcessGroup& group) { group.all_reduce_coalesced({}); });
}

INSTANTIATE_TEST_SUITE_P(
    Transports, CoalescedTest,
    testing::Values(Setting{TransportKind::kAuto, 1}, Setting{TransportKind::kLoopback, 2},
                    Setting{TransportKind::kLoopback, 3}, Setting{TransportKind::kShm, 2},
                    Setting{TransportKind::kTcp, 2}, Setting{TransportKind::kTcp, 3}),
    [](const auto& info) { return name_of(info.param); });

class CoalescedMismatch : public testing::TestWithParam<TransportKind> {};

// The odd rank's list against the others', both of 30 elements.
TEST_P(CoalescedMismatch, another_list_of_the_same_sum_is_an_error_on_every_rank) {
  const std::vector<std::vector<std::size_t>> lists = {{10, 20}, {20, 10}, {30}, {10, 10, 10}};
  for (std::size_t odd = 1; odd < lists.size(); ++odd) {
    const auto results = run_ranks(3,
                                   [&](ProcessGroup& group) {
                                     List list;
                                     for (const auto count : lists[group.rank() == 1 ? odd : 0]) {
                                       list.emplace_back(count);
                                     }
                                     group.all_reduce_coalesced(views_of<Buffer>(list));
                                   },
                                   {.transport = GetParam(), .group_timeout = 20s});
    for (const auto& result : results) {
      ASSERT_TRUE(result.error) << odd;
      EXPECT_TRUE(result.error->code() == ErrorCode::kInvalid ||
                  result.error->code() == ErrorCode::kAborted)
          << result.error->what();
    }
  }
}

TEST_P(CoalescedMismatch, one_buffer_is_not_a_plain_call) {
  const auto results = run_ranks(2,
                                 [&](ProcessGroup& group) {
                                   List list(1, std::vector<float>(30));
                                   if (group.rank() == 0) {
                                     group.all_reduce(std::span(list[0]));
                                   } else {
                                     group.all_reduce_coalesced(views_of<Buffer>(list));
                                   }
                                 },
                                 {.transport = GetParam(), .group_timeout = 20s});
  for (const auto& result : results) EXPECT_TRUE(result.error);
}

INSTANTIATE_TEST_SUITE_P(Transports, CoalescedMismatch,
                         testing::Values(TransportKind::kLoopback, TransportKind::kTcp),
                         [](const auto& info) {
                           return std::string(info.param == TransportKind::kTcp ? "tcp" : "shared");
                         });

TEST(CoalescedArguments, are_checked_before_anything_is_sent) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> floats(10);
    std::vector<double> doubles(10);
    const std::vector<Buffer> mixed = {std::span(floats), std::span(doubles)};
    EXPECT_THROW(group.all_reduce_coalesced(mixed), Error);
    const std::vector<ConstBuffer> inputs = {std::span(floats)};
    const std::vector<Buffer> outputs = {std::span(floats), std::span(floats)};
    EXPECT_THROW(group.all_gather_coalesced(inputs, outputs), Error);
    EXPECT_THROW(group.broadcast_coalesced(outputs, 2), Error);
    EXPECT_THROW(group.all_reduce_coalesced(outputs, ReduceOp::kBitAnd), Error);
    group.barrier();
  });
}

}  // namespace
}  // namespace paceline
