// The conformance suite of collectives: every operation, type and size class, over every transport
// and for several world sizes.

#include <bit>
#include <cstring>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using namespace std::chrono_literals;

struct Setting {
  TransportKind transport;
  int world;
};

std::string name_of(const Setting& setting) {
  const char* names[] = {"auto", "tcp", "shm", "loopback"};
  return std::string(names[static_cast<int>(setting.transport)]) + "_" +
         std::to_string(setting.world);
}

// Below, at and above each boundary of the executors: one-shot, small, staging area, chunk.
const std::vector<std::size_t> kCounts = {0,    1,    2,    63,   64,    65,    1000,  2047,   2048,
                                          2049, 4096, 4097, 5000, 65535, 65536, 65537, 200'001};

// Different on every rank and at every index, exact in every type's arithmetic.
template <class T>
T value_at(int rank, std::size_t index) {
  return static_cast<T>((index * 7 + static_cast<std::size_t>(rank) * 13) % 5);
}

template <class T>
std::vector<T> values(int rank, std::size_t count, std::size_t first = 0) {
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = value_at<T>(rank, first + i);
  return result;
}

template <class T>
std::vector<T> total(int world, std::size_t count, std::size_t first = 0) {
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < world; ++rank)
      result[i] = static_cast<T>(result[i] + value_at<T>(rank, first + i));
  }
  return result;
}

class GroupTest : public testing::TestWithParam<Setting> {
 protected:
  void run(const harness::RankBody& body) {
    run_ranks_ok(GetParam().world, body, {.transport = GetParam().transport});
  }
  int world() const { return GetParam().world; }
};

TEST_P(GroupTest, all_reduce_sums_in_place_and_out_of_place) {
  run([&](ProcessGroup& group) {
    for (const auto count : kCounts) {
      auto data = values<float>(group.rank(), count);
      std::vector<float> other(count);
      group.all_reduce(ConstBuffer(std::span(data)), std::span(other), ReduceOp::kSum);
      group.all_reduce(std::span(data));
      ASSERT_EQ(data, total<float>(world(), count)) << count;
      ASSERT_EQ(other, data) << count;
    }
  });
}

TEST_P(GroupTest, all_reduce_in_symmetric_memory_gives_the_same) {
  run([&](ProcessGroup& group) {
    const auto buffer = group.allocate_symmetric(2 * 200'001 * sizeof(double));
    const auto all = buffer.as<double>();
    for (const auto count : kCounts) {
      // At another offset on every rank: only the region must be the same.
      const auto data = all.subspan(static_cast<std::size_t>(group.rank()) * 8, count);
      const auto mine = values<double>(group.rank(), count);
      std::copy(mine.begin(), mine.end(), data.begin());
      group.all_reduce(data);
      ASSERT_EQ(std::vector<double>(data.begin(), data.end()), total<double>(world(), count))
          << count;
    }
  });
}

TEST_P(GroupTest, symmetric_on_some_ranks_only_still_works) {
  run([&](ProcessGroup& group) {
    const auto buffer = group.allocate_symmetric(100'000 * sizeof(float));
    auto ordinary = values<float>(group.rank(), 100'000);
    auto data = group.rank() == 0 ? buffer.as<float>() : std::span(ordinary);
    const auto mine = values<float>(group.rank(), 100'000);
    std::copy(mine.begin(), mine.end(), data.begin());
    group.all_reduce(data);
    ASSERT_EQ(std::vector<float>(data.begin(), data.end()), total<float>(world(), 100'000));
  });
}

TEST_P(GroupTest, broadcast_and_reduce_with_every_root) {
  run([&](ProcessGroup& group) {
    for (int root = 0; root < world(); ++root) {
      for (const auto count : kCounts) {
        auto data = values<std::int32_t>(group.rank(), count);
        group.broadcast(std::span(data), root);
        ASSERT_EQ(data, values<std::int32_t>(root, count));
        data = values<std::int32_t>(group.rank(), count);
        group.reduce(std::span(data), root);
        ASSERT_EQ(data, group.rank() == root ? total<std::int32_t>(world(), count)
                                             : values<std::int32_t>(group.rank(), count));
      }
    }
  });
}

TEST_P(GroupTest, gathers_and_scatters) {
  run([&](ProcessGroup& group) {
    const auto size = static_cast<std::size_t>(world());
    for (const std::size_t count : {0, 1, 64, 1000, 9000, 70'001}) {
      std::vector<std::int64_t> everything;
      for (int rank = 0; rank < world(); ++rank) {
        const auto part = values<std::int64_t>(rank, count);
        everything.insert(everything.end(), part.begin(), part.end());
      }
      const auto mine = values<std::int64_t>(group.rank(), count);
      std::vector<std::int64_t> all(count * size);
      group.all_gather(std::span(mine), std::span(all));
      ASSERT_EQ(all, everything) << count;

      const int root = world() - 1;
      std::fill(all.begin(), all.end(), 0);
      std::vector<std::int64_t> one(count);
      if (group.rank() == root) {
        group.gather(std::span(mine), std::span(all), root);
        ASSERT_EQ(all, everything) << count;
        group.scatter(std::span(all), std::span(one), root);
      } else {
        group.gather(std::span(mine), {}, root);
        group.scatter({}, std::span(one), root);
      }
      ASSERT_EQ(one, mine) << count;
    }
  });
}

TEST_P(GroupTest, all_gather_in_place_and_in_symmetric_memory) {
  run([&](ProcessGroup& group) {
    const std::size_t count = 30'000;
    const auto buffer =
        group.allocate_symmetric(count * static_cast<std::size_t>(world()) * sizeof(float));
    const auto all = buffer.as<float>();
    const auto mine = all.subspan(count * static_cast<std::size_t>(group.rank()), count);
    const auto wanted = values<float>(group.rank(), count);
    std::copy(wanted.begin(), wanted.end(), mine.begin());
    group.all_gather(mine, all);
    for (int rank = 0; rank < world(); ++rank) {
      const auto part = all.subspan(count * static_cast<std::size_t>(rank), count);
      ASSERT_EQ(std::vector<float>(part.begin(), part.end()), values<float>(rank, count));
    }
  });
}

TEST_P(GroupTest, reduce_scatter_and_all_to_all) {
  run([&](ProcessGroup& group) {
    const auto size = static_cast<std::size_t>(world());
    const auto self = static_cast<std::size_t>(group.rank());
    for (const std::size_t count : {0, 1, 64, 1000, 9000, 70'001}) {
      const auto input = values<float>(group.rank(), count * size);
      std::vector<float> part(count);
      group.reduce_scatter(std::span(input), std::span(part));
      ASSERT_EQ(part, total<float>(world(), count, self * count)) << count;

      std::vector<float> exchanged(count * size);
      group.all_to_all(std::span(input), std::span(exchanged));
      for (int rank = 0; rank < world(); ++rank) {
        const auto begin =
            exchanged.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * count);
        ASSERT_EQ(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count)),
                  values<float>(rank, count, self * count));
      }
    }
  });
}

TEST_P(GroupTest, every_type_and_operation_agrees_between_staged_and_symmetric_memory) {
  run([&](ProcessGroup& group) {
    const std::size_t count = 40'000;
    const auto shared = group.allocate_symmetric(count * 8);
    for (const Dtype dtype : kAllDtypes) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::kBitXor); ++op) {
        const auto reduce_op = static_cast<ReduceOp>(op);
        if (!is_defined(reduce_op, dtype)) continue;
        std::mt19937 random(static_cast<unsigned>(group.rank() * 100 + op));
        std::vector<std::byte> plain(count * size_of(dtype));
        for (std::size_t i = 0; i < plain.size(); ++i) {
          // 0x3? as every byte: a modest positive number in every floating-point type.
          plain[i] =
              dtype == Dtype::kBool ? std::byte(random() & 1) : std::byte(0x38 | (random() & 7));
        }
        std::memcpy(shared.data(), plain.data(), plain.size());
        group.all_reduce(Buffer(plain.data(), count, dtype), reduce_op);
        group.all_reduce(Buffer(shared.data(), count, dtype), reduce_op);
        ASSERT_EQ(std::memcmp(plain.data(), shared.data(), plain.size()), 0)
            << name_of(dtype) << " " << name_of(reduce_op);
      }
    }
  });
}

TEST_P(GroupTest, asynchronous_operations_run_in_order_beside_blocking_ones) {
  run([&](ProcessGroup& group) {
    std::vector<std::vector<float>> buffers;
    std::vector<WorkPtr> works;
    for (std::size_t i = 0; i < 20; ++i)
      buffers.push_back(values<float>(group.rank(), 100 * (i + 1)));
    for (auto& buffer : buffers) works.push_back(group.all_reduce_async(std::span(buffer)));
    auto last = values<float>(group.rank(), 77);
    group.all_reduce(std::span(last));
    for (const auto& work : works) EXPECT_TRUE(work->is_completed());
    for (const auto& buffer : buffers) ASSERT_EQ(buffer, total<float>(world(), buffer.size()));
    ASSERT_EQ(last, total<float>(world(), 77));
  });
}

TEST_P(GroupTest, sub_groups_and_splits) {
  run([&](ProcessGroup& group) {
    std::vector<int> even;
    for (int rank = 0; rank < world(); rank += 2) even.push_back(rank);
    const auto evens = group.new_group(even);
    EXPECT_EQ(evens != nullptr, group.rank() % 2 == 0);
    if (evens) {
      EXPECT_EQ(evens->world_ranks(), even);
      EXPECT_EQ(all_reduce_value(*evens, 1), static_cast<int>(even.size()));
    }
    // Reversed by key.
    const auto half = group.split(group.rank() % 2, -group.rank());
    ASSERT_NE(half, nullptr);
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(half->world_size()));
    const std::int32_t mine = group.rank();
    half->all_gather(std::span(&mine, 1), std::span(ranks));
    EXPECT_TRUE(std::is_sorted(ranks.rbegin(), ranks.rend()));
    EXPECT_EQ(group.split(group.rank() == 0 ? -1 : 0, 0) == nullptr, group.rank() == 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Transports, GroupTest,
    testing::Values(Setting{TransportKind::kAuto, 1}, Setting{TransportKind::kLoopback, 2},
                    Setting{TransportKind::kLoopback, 3}, Setting{TransportKind::kLoopback, 4},
                    Setting{TransportKind::kLoopback, 5}, Setting{TransportKind::kLoopback, 8},
                    Setting{TransportKind::kShm, 2}, Setting{TransportKind::kShm, 3},
                    Setting{TransportKind::kTcp, 2}, Setting{TransportKind::kTcp, 3},
                    Setting{TransportKind::kTcp, 5}),
    [](const auto& info) { return name_of(info.param); });

// The promise of kernels/reduce.h across transports, buffers and chunkings.
TEST(Determinism, the_same_bits_over_every_transport_and_on_every_rank) {
  for (const int world : {2, 3, 4, 5}) {
    for (const std::size_t count : {100, 2000, 5000, 300'001}) {
      std::set<std::vector<float>> results;
      std::mutex mutex;
      for (const auto transport :
           {TransportKind::kLoopback, TransportKind::kShm, TransportKind::kTcp}) {
        run_ranks_ok(world,
                     [&](ProcessGroup& group) {
                       std::mt19937 random(static_cast<unsigned>(group.rank()));
                       std::vector<float> data(count);
                       for (auto& value : data)
                         value = std::uniform_real_distribution<float>(-1, 1)(random);
                       const auto shared = group.allocate_symmetric(count * sizeof(float));
                       std::memcpy(shared.data(), data.data(), count * sizeof(float));
                       group.all_reduce(std::span(data));
                       group.all_reduce(shared.as<float>());
                       const auto view = shared.as<float>();
                       const std::lock_guard lock(mutex);
                       results.insert(data);
                       results.insert(std::vector<float>(
                           view.begin(), view.begin() + static_cast<std::ptrdiff_t>(count)));
                     },
                     {.transport = transport});
      }
      EXPECT_EQ(results.size(), 1u) << world << " ranks, " << count << " elements";
    }
  }
}

}  // namespace
}  // namespace paceline
