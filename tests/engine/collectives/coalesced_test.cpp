// A coalesced operation on many buffers, over every transport.

#include <gtest/gtest.h>

#include "tests/engine/collectives/transport_setting.h"
#include "tests/harness/expect_error.h"
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

// Empty buffers, small ones, and one that is larger than a window.
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

class CoalescedTest : public testing::TestWithParam<TransportSetting> {
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
    group.all_reduce_coalesced(views_of<Buffer>(later), ReduceOp::kSum, {.async_op = true})->wait();
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
    group.broadcast_coalesced(views_of<Buffer>(later), 0, {.async_op = true})->wait();
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
        group.all_gather_coalesced(outputs, inputs, {.async_op = true})->wait();
      } else {
        group.all_gather_coalesced(outputs, inputs);
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
        group.reduce_scatter_coalesced(outputs, inputs, ReduceOp::kSum, {.async_op = true})->wait();
      } else {
        group.reduce_scatter_coalesced(outputs, inputs);
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

INSTANTIATE_TEST_SUITE_P(Transports, CoalescedTest,
                         testing::Values(TransportSetting{TransportKind::kAuto, 1},
                                         TransportSetting{TransportKind::kLoopback, 2},
                                         TransportSetting{TransportKind::kLoopback, 3},
                                         TransportSetting{TransportKind::kShm, 2},
                                         TransportSetting{TransportKind::kTcp, 2},
                                         TransportSetting{TransportKind::kTcp, 3}),
                         [](const auto& info) { return name_of(info.param); });

class CoalescedMismatch : public testing::TestWithParam<TransportSetting> {
 protected:
  // The last rank makes the odd call.
  void expect_error_everywhere(const harness::RankBody& odd, const harness::RankBody& even) {
    const auto results = run_ranks(
        GetParam().world,
        [&](ProcessGroup& group) { (group.rank() == group.world_size() - 1 ? odd : even)(group); },
        {.transport = GetParam().transport, .group_timeout = kNever});
    for (const auto& result : results) {
      ASSERT_TRUE(result.error);
      EXPECT_TRUE(result.error->code() == ErrorCode::kInvalid ||
                  result.error->code() == ErrorCode::kAborted)
          << result.error->what();
    }
  }

  // Longer than a test may take: no call waits for it.
  static constexpr auto kNever = 100s;
};

using Lengths = std::vector<std::size_t>;

List list_with(const Lengths& lengths, std::size_t factor = 1) {
  List list;
  for (const auto length : lengths) list.emplace_back(length * factor);
  return list;
}

// Each coalesced operation, on a list of buffers of these lengths.
const std::vector<std::function<void(ProcessGroup&, const Lengths&)>> kCoalesced = {
    [](ProcessGroup& group, const Lengths& lengths) {
      List list = list_with(lengths);
      group.all_reduce_coalesced(views_of<Buffer>(list));
    },
    [](ProcessGroup& group, const Lengths& lengths) {
      List list = list_with(lengths);
      group.broadcast_coalesced(views_of<Buffer>(list), 0);
    },
    [](ProcessGroup& group, const Lengths& lengths) {
      List inputs = list_with(lengths);
      List outputs = list_with(lengths, static_cast<std::size_t>(group.world_size()));
      group.all_gather_coalesced(views_of<Buffer>(outputs), views_of<ConstBuffer>(inputs));
    },
    [](ProcessGroup& group, const Lengths& lengths) {
      List inputs = list_with(lengths, static_cast<std::size_t>(group.world_size()));
      List outputs = list_with(lengths);
      group.reduce_scatter_coalesced(views_of<Buffer>(outputs), views_of<ConstBuffer>(inputs));
    },
};

TEST_P(CoalescedMismatch, another_list_of_the_same_sum_is_an_error_on_every_rank) {
  for (std::size_t call = 0; call < kCoalesced.size(); ++call) {
    for (const Lengths& other : {Lengths{20, 10}, Lengths{30}, Lengths{10, 10, 10}}) {
      SCOPED_TRACE(call);
      expect_error_everywhere([&](ProcessGroup& group) { kCoalesced[call](group, other); },
                              [&](ProcessGroup& group) {
                                kCoalesced[call](group, {10, 20});
                              });
    }
  }
}

TEST_P(CoalescedMismatch, another_operation_is_an_error_on_every_rank) {
  for (std::size_t call = 0; call < kCoalesced.size(); ++call) {
    SCOPED_TRACE(call);
    const auto& next = kCoalesced[(call + 1) % kCoalesced.size()];
    expect_error_everywhere(
        [&](ProcessGroup& group) {
          next(group, {10, 20});
        },
        [&](ProcessGroup& group) {
          kCoalesced[call](group, {10, 20});
        });
  }
}

TEST_P(CoalescedMismatch, one_buffer_is_not_a_plain_call) {
  expect_error_everywhere(
      [](ProcessGroup& group) {
        std::vector<float> data(30);
        group.all_reduce(std::span(data));
      },
      [](ProcessGroup& group) { kCoalesced[0](group, {30}); });
}

INSTANTIATE_TEST_SUITE_P(Transports, CoalescedMismatch, testing::ValuesIn(mismatch_settings()),
                         [](const auto& info) { return name_of(info.param); });

TEST(CoalescedArguments, are_checked_before_anything_is_sent) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> floats(10);
    std::vector<double> doubles(10);
    const std::vector<Buffer> mixed = {std::span(floats), std::span(doubles)};
    EXPECT_THROW(group.all_reduce_coalesced(mixed), Error);
    const std::vector<ConstBuffer> inputs = {std::span(floats)};
    const std::vector<Buffer> outputs = {std::span(floats), std::span(floats)};
    EXPECT_THROW(group.all_gather_coalesced(outputs, inputs), Error);
    EXPECT_THROW(group.broadcast_coalesced(outputs, 2), Error);
    EXPECT_THROW(group.all_reduce_coalesced(outputs, ReduceOp::kBitAnd), Error);
    group.barrier();
  });
}

TEST(CoalescedArguments, that_overlap_are_refused_but_for_a_ranks_own_block) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> data(16, 1), apart(4, 1);
    const auto part = [&](std::size_t first, std::size_t count) {
      return Buffer(std::span(data).subspan(first, count));
    };
    const auto refused = [&](const char* words, const auto& call) {
      expect_error(ErrorCode::kInvalid, {words, "overlap"}, call);
    };
    refused("all_reduce on 3 buffers: output 0 and output 2", [&] {
      group.all_reduce_coalesced(std::vector{part(4, 4), part(0, 2), part(2, 3)});
    });
    refused("output 1 and output 0", [&] {
      group.broadcast_coalesced(std::vector{part(0, 16), part(15, 1)}, 0);
    });
    const std::vector<ConstBuffer> inputs = {std::span(apart), std::span(apart)};
    refused("all_gather on 2 buffers: output 1 and output 0", [&] {
      group.all_gather_coalesced(std::vector{part(0, 8), part(7, 8)}, inputs);
    });
    const std::vector<ConstBuffer> of_another = {std::span(apart), part(0, 2)};
    refused("all_gather on 2 buffers: input 1 and output 0", [&] {
      group.all_gather_coalesced(std::vector{part(0, 8), part(8, 4)}, of_another);
    });
    // Inputs may be identical, outputs may be adjacent, and an empty buffer may be anywhere.
    group.all_gather_coalesced(std::vector{part(0, 8), part(8, 8)}, inputs);
    group.all_reduce_coalesced(std::vector{part(4, 4), part(5, 0), part(0, 4), part(8, 8)});
    EXPECT_EQ(data, std::vector<float>(16, 2));
    const auto own = static_cast<std::size_t>(group.rank()) * 4;
    group.all_gather_coalesced(std::vector{part(0, 8), part(8, 4)},
                               std::vector<ConstBuffer>{part(own, 4), part(8 + own / 2, 2)});
  });
}

}  // namespace
}  // namespace paceline
