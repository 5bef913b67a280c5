// Operations with a count for each rank, over every transport.

#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tests/engine/collectives/transport_setting.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;
using namespace std::chrono_literals;
using Counts = std::vector<std::size_t>;

float value_at(int rank, std::size_t index) {
  return static_cast<float>((index * 7 + static_cast<std::size_t>(rank) * 13) % 5);
}

std::vector<float> values(int rank, std::size_t count, std::size_t first = 0) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = value_at(rank, first + i);
  return result;
}

std::size_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// Unequal counts, some zero; as `scale` grows they cross every size boundary of the executors.
Counts counts_for(int world, std::size_t scale, std::size_t shift = 0) {
  Counts counts(static_cast<std::size_t>(world));
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = ((i + shift) * 7 + 3) % 5 * scale;
  return counts;
}

const std::vector<std::size_t> kScales = {0, 1, 17, 1000, 30'011, 150'001};

class CountsTest : public testing::TestWithParam<TransportSetting> {
 protected:
  void run(const harness::RankBody& body) {
    run_ranks_ok(GetParam().world, body, {.transport = GetParam().transport});
  }
  int world() const { return GetParam().world; }
};

TEST_P(CountsTest, all_gather_v_puts_the_blocks_in_a_row) {
  run([&](ProcessGroup& group) {
    for (const auto scale : kScales) {
      const auto counts = counts_for(world(), scale);
      const auto self = static_cast<std::size_t>(group.rank());
      std::vector<float> wanted;
      std::size_t before = 0;
      for (int rank = 0; rank < world(); ++rank) {
        const auto part = values(rank, counts[static_cast<std::size_t>(rank)]);
        if (rank == group.rank()) before = wanted.size();
        wanted.insert(wanted.end(), part.begin(), part.end());
      }
      const auto mine = values(group.rank(), counts[self]);
      std::vector<float> all(sum(counts));
      group.all_gather_v(std::span(all), std::span(mine), counts);
      ASSERT_EQ(all, wanted) << scale;
      // In place, and asynchronously.
      std::vector<float> again(sum(counts));
      const auto own = std::span(again).subspan(before, counts[self]);
      std::copy(mine.begin(), mine.end(), own.begin());
      group.all_gather_v(std::span(again), own, Counts(counts), {.async_op = true})->wait();
      ASSERT_EQ(again, wanted) << scale;
    }
  });
}

TEST_P(CountsTest, reduce_scatter_v_gives_each_rank_its_block_of_the_sum) {
  run([&](ProcessGroup& group) {
    for (const auto scale : kScales) {
      const auto counts = counts_for(world(), scale);
      const auto self = static_cast<std::ptrdiff_t>(group.rank());
      const auto before = std::accumulate(counts.begin(), counts.begin() + self, std::size_t{0});
      const auto input = values(group.rank(), sum(counts));
      std::vector<float> wanted(counts[static_cast<std::size_t>(self)]);
      for (int rank = 0; rank < world(); ++rank) {
        for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += value_at(rank, before + i);
      }
      std::vector<float> part(wanted.size());
      group.reduce_scatter_v(std::span(part), std::span(input), counts);
      ASSERT_EQ(part, wanted) << scale;
      std::fill(part.begin(), part.end(), -1.0f);
      group
          .reduce_scatter_v(std::span(part), std::span(input), Counts(counts), ReduceOp::kSum,
                            {.async_op = true})
          ->wait();
      ASSERT_EQ(part, wanted) << scale;
    }
  });
}

TEST_P(CountsTest, all_to_all_v_gives_each_pair_its_count) {
  run([&](ProcessGroup& group) {
    const int rank = group.rank();
    for (const auto scale : kScales) {
      const auto given = [&](int from) {
        return counts_for(world(), scale, static_cast<std::size_t>(from) * 3);
      };
      const auto send_counts = given(rank);
      Counts receive_counts;
      std::vector<float> wanted;
      for (int from = 0; from < world(); ++from) {
        const auto theirs = given(from);
        receive_counts.push_back(theirs[static_cast<std::size_t>(rank)]);
        const auto before = std::accumulate(theirs.begin(), theirs.begin() + rank, std::size_t{0});
        const auto part = values(from, receive_counts.back(), before);
        wanted.insert(wanted.end(), part.begin(), part.end());
      }
      const auto input = values(rank, sum(send_counts));
      std::vector<float> output(wanted.size());
      group.all_to_all_v(std::span(output), std::span(input), receive_counts, send_counts);
      ASSERT_EQ(output, wanted) << scale;
      std::fill(output.begin(), output.end(), -1.0f);
      group
          .all_to_all_v(std::span(output), std::span(input), Counts(receive_counts),
                        Counts(send_counts), {.async_op = true})
          ->wait();
      ASSERT_EQ(output, wanted) << scale;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, CountsTest,
                         testing::Values(TransportSetting{TransportKind::kAuto, 1},
                                         TransportSetting{TransportKind::kLoopback, 2},
                                         TransportSetting{TransportKind::kLoopback, 3},
                                         TransportSetting{TransportKind::kLoopback, 5},
                                         TransportSetting{TransportKind::kShm, 2},
                                         TransportSetting{TransportKind::kShm, 3},
                                         TransportSetting{TransportKind::kTcp, 2},
                                         TransportSetting{TransportKind::kTcp, 3},
                                         TransportSetting{TransportKind::kTcp, 5}),
                         [](const auto& info) { return name_of(info.param); });

TEST(CountsBits, reduce_scatter_v_adds_up_in_the_order_of_all_reduce) {
  for (const auto transport : {TransportKind::kLoopback, TransportKind::kTcp}) {
    run_ranks_ok(
        5,
        [&](ProcessGroup& group) {
          const Counts counts = {3000, 0, 70'001, 5, 40'000};
          std::mt19937 random(static_cast<unsigned>(group.rank()));
          std::vector<float> data(sum(counts));
          for (auto& one : data) {
            one = std::uniform_real_distribution<float>(-1, 1)(random);
          }
          const auto self = static_cast<std::size_t>(group.rank());
          std::vector<float> part(counts[self]);
          group.reduce_scatter_v(std::span(part), std::span(data), counts);
          group.all_reduce(std::span(data));
          const auto before = std::accumulate(counts.begin(), counts.begin() + group.rank(), 0);
          EXPECT_EQ(part, std::vector<float>(
                              data.begin() + before,
                              data.begin() + before + static_cast<std::ptrdiff_t>(part.size())));
        },
        {.transport = transport});
  }
}

class CountsMismatch : public testing::TestWithParam<TransportSetting> {
 protected:
  std::vector<harness::RankResult> run(const harness::RankBody& body) {
    return run_ranks(GetParam().world, body,
                     {.transport = GetParam().transport, .group_timeout = 100s});
  }
  void expect_error_everywhere(const harness::RankBody& body) {
    const auto begin = std::chrono::steady_clock::now();
    const auto results = run(body);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    for (const auto& result : results) {
      ASSERT_TRUE(result.error);
      EXPECT_TRUE(result.error->code() == ErrorCode::kInvalid ||
                  result.error->code() == ErrorCode::kAborted)
          << result.error->what();
    }
  }
};

// 20 elements for each rank; on the last rank the first two counts differ by 10 from those of the
// other ranks.
Counts counts_of(const ProcessGroup& group) {
  Counts counts(static_cast<std::size_t>(group.world_size()), 20);
  if (group.rank() == group.world_size() - 1) {
    counts[0] += 10;
    counts[1] -= 10;
  }
  return counts;
}

TEST_P(CountsMismatch, other_counts_of_the_same_sum_are_noticed) {
  expect_error_everywhere([](ProcessGroup& group) {
    const Counts counts = counts_of(group);
    const auto mine = values(0, counts[static_cast<std::size_t>(group.rank())]);
    std::vector<float> all(sum(counts));
    group.all_gather_v(std::span(all), std::span(mine), counts);
  });
  expect_error_everywhere([](ProcessGroup& group) {
    const Counts counts = counts_of(group);
    const auto all = values(0, sum(counts));
    std::vector<float> mine(counts[static_cast<std::size_t>(group.rank())]);
    group.reduce_scatter_v(std::span(mine), std::span(all), counts);
  });
}

TEST_P(CountsMismatch, counts_against_a_plain_call_are_noticed) {
  expect_error_everywhere([](ProcessGroup& group) {
    const Counts counts(static_cast<std::size_t>(group.world_size()), 20);
    const auto mine = values(0, 20);
    std::vector<float> all(sum(counts));
    if (group.rank() == 0) {
      group.all_gather(std::span(all), std::span(mine));
    } else {
      group.all_gather_v(std::span(all), std::span(mine), counts);
    }
  });
}

TEST_P(CountsMismatch, an_unexpected_count_of_one_pair_is_named_on_every_rank) {
  const int last = GetParam().world - 1;
  const auto results = run([&](ProcessGroup& group) {
    const Counts given(static_cast<std::size_t>(group.world_size()), 4);
    Counts wanted = given;
    if (group.rank() == 0) wanted.back() = 5;
    const auto input = values(0, sum(given));
    std::vector<float> output(sum(wanted));
    group.all_to_all_v(std::span(output), std::span(input), wanted, given);
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(),
                Says("mismatch.counts", fmt::format("rank {}", last), "rank 0", 4));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, CountsMismatch, testing::ValuesIn(mismatch_settings()),
                         [](const auto& info) { return name_of(info.param); });

TEST(CountsArguments, are_checked_before_anything_is_sent) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> data(10);
    const auto view = std::span(data);
    EXPECT_THROW(group.all_gather_v(view, view, Counts{10}), Error);
    EXPECT_THROW(group.all_gather_v(view, view, Counts{10, 10}), Error);
    EXPECT_THROW(group.reduce_scatter_v(view, view, Counts{10, 10}), Error);
    EXPECT_THROW(group.reduce_scatter_v(view, view, Counts{5, 5}, ReduceOp::kBitOr), Error);
    EXPECT_THROW(group.all_to_all_v(view, view, Counts{5, 5}, Counts{5, 5}), Error);
    EXPECT_THROW(group.all_to_all_v(view, view, Counts{5, 5}, Counts{5, 6}), Error);
    EXPECT_THROW(group.all_to_all_v(view, view, Counts{10}, Counts{10}), Error);
    group.barrier();
  });
}

}  // namespace
}  // namespace paceline
