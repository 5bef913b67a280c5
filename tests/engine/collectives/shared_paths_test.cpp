// The paths through shared memory (staged, in place, and mixed: some ranks pass symmetric memory
// and others do not) give the same results at every size at which the choice changes, in any order
// of calls.

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/harness/random_seed.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;

// Numbers of floats around 1, 8, 16 and 256 KB.
constexpr std::size_t kPathCounts[] = {1,    50,   255,  256,  257,    2047,   2048,
                                       2049, 4095, 4096, 4097, 65'536, 100'001};
constexpr std::size_t kMaxCount = 100'001;
constexpr int kCalls = 200;

// Whole numbers, so that sums are exact.
float value_of(int rank, int call, std::size_t index) {
  return static_cast<float>((static_cast<std::size_t>(rank * 31 + call * 7) + index) % 101);
}

class Buffers {
 public:
  explicit Buffers(ProcessGroup& group)
      : world_(static_cast<std::size_t>(group.world_size())),
        shared_(group.allocate_symmetric(2 * world_ * kMaxCount * sizeof(float))),
        ordinary_(2 * world_ * kMaxCount) {}

  // `which` is 0 for the input and 1 for the output.
  std::span<float> take(int which, bool is_symmetric, std::size_t count) {
    const auto all = is_symmetric ? shared_.as<float>() : std::span(ordinary_);
    return all.subspan(static_cast<std::size_t>(which) * world_ * kMaxCount, count);
  }

 private:
  std::size_t world_;
  SymmetricBuffer shared_;
  std::vector<float> ordinary_;
};

void fill(std::span<float> data, int rank, int call) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = value_of(rank, call, i);
}

float sum_at(int world, int call, std::size_t index) {
  float sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += value_of(rank, call, index);
  return sum;
}

// The count that rank `from` has for rank `to`: unequal, some zero, none above `most`.
std::size_t part_of(std::size_t most, std::size_t from, std::size_t to) {
  return most * ((from * 3 + to * 2 + 1) % 5) / 4;
}

template <class Part>
std::vector<std::size_t> parts(std::size_t world, Part part) {
  std::vector<std::size_t> all;
  for (std::size_t rank = 0; rank < world; ++rank) all.push_back(part(rank));
  return all;
}

std::size_t sum_of(const std::vector<std::size_t>& counts, std::size_t last) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(last),
                         std::size_t{0});
}

#define EXPECT_VALUES(data, expected)                                                        \
  for (std::size_t i = 0; i < (data).size(); ++i) {                                          \
    ASSERT_EQ((data)[i], (expected)) << "element " << i << " of " << (data).size() << trace; \
  }

// Calls all_gather_v, reduce_scatter_v or all_to_all_v; a block has at most `count` elements.
template <class Input, class Output>
void call_with_counts(ProcessGroup& group, unsigned op, int call, std::size_t count, Input input,
                      Output output, const std::string& trace) {
  const int world = group.world_size();
  const auto ranks = static_cast<std::size_t>(world);
  const auto self = static_cast<std::size_t>(group.rank());
  const auto counts = parts(ranks, [&](std::size_t rank) { return part_of(count, rank, 0); });
  const std::size_t total = sum_of(counts, ranks);
  if (op == 0) {
    const auto in = input(counts[self]);
    const auto out = output(total);
    group.all_gather_v(out, ConstBuffer(in), counts);
    for (std::size_t from = 0; from < ranks; ++from) {
      const auto block = out.subspan(sum_of(counts, from), counts[from]);
      EXPECT_VALUES(block, value_of(static_cast<int>(from), call, i));
    }
  } else if (op == 1) {
    const auto in = input(total);
    const auto out = output(counts[self]);
    group.reduce_scatter_v(out, ConstBuffer(in), counts);
    EXPECT_VALUES(out, sum_at(world, call, sum_of(counts, self) + i));
  } else {
    const auto given_by = [&](std::size_t from) {
      return parts(ranks, [&](std::size_t to) { return part_of(count, from, to); });
    };
    const auto gets = parts(ranks, [&](std::size_t from) { return part_of(count, from, self); });
    const auto in = input(sum_of(given_by(self), ranks));
    const auto out = output(sum_of(gets, ranks));
    group.all_to_all_v(out, ConstBuffer(in), gets, given_by(self));
    for (std::size_t from = 0; from < ranks; ++from) {
      const auto block = out.subspan(sum_of(gets, from), gets[from]);
      const std::size_t first = sum_of(given_by(from), self);
      EXPECT_VALUES(block, value_of(static_cast<int>(from), call, first + i));
    }
  }
}

void call_at_random(ProcessGroup& group, Buffers& buffers, std::mt19937& random, int call) {
  const int rank = group.rank(), world = group.world_size();
  const auto ranks = static_cast<std::size_t>(world);
  const auto self = static_cast<std::size_t>(rank);
  // `random` and thus these values are the same on every rank.
  const std::size_t count = kPathCounts[random() % std::size(kPathCounts)];
  const unsigned inputs = random() % 3 == 0 ? ~0u : random(),
                 outputs = random() % 3 ? inputs : random();
  const unsigned op = random() % 11;
  const int root = static_cast<int>(random() % ranks);
  const bool in_place = random() % 2 == 0;
  const bool has_shared_input = (inputs >> rank & 1) != 0,
             has_shared_output = (outputs >> rank & 1) != 0;
  const std::string trace =
      fmt::format(" in call {}: op {}, {} elements, root {}", call, op, count, root);
  const auto input = [&](std::size_t n) {
    const auto data = buffers.take(0, has_shared_input, n);
    fill(data, rank, call);
    return data;
  };
  const auto output = [&](std::size_t n) { return buffers.take(1, has_shared_output, n); };
  switch (op) {
    case 0: {
      const auto in = input(count);
      const auto out = in_place ? in : output(count);
      group.all_reduce(out, ConstBuffer(in), ReduceOp::kSum);
      EXPECT_VALUES(out, sum_at(world, call, i));
      break;
    }
    case 1: {
      const auto in = input(count);
      group.reduce(in, root);
      if (rank == root) EXPECT_VALUES(in, sum_at(world, call, i));
      if (rank != root) EXPECT_VALUES(in, value_of(rank, call, i));
      break;
    }
    case 2: {
      const auto in = input(count);
      group.broadcast(in, root);
      EXPECT_VALUES(in, value_of(root, call, i));
      break;
    }
    case 3: {
      const auto in = input(count);
      const auto out = output(ranks * count);
      group.all_gather(out, ConstBuffer(in));
      EXPECT_VALUES(out, value_of(static_cast<int>(i / count), call, i % count));
      break;
    }
    case 4: {
      const auto in = input(ranks * count);
      const auto out = output(count);
      group.reduce_scatter(out, ConstBuffer(in));
      EXPECT_VALUES(out, sum_at(world, call, self * count + i));
      break;
    }
    case 5: {
      const auto in = input(ranks * count);
      const auto out = output(ranks * count);
      group.all_to_all(out, ConstBuffer(in));
      EXPECT_VALUES(out, value_of(static_cast<int>(i / count), call, self * count + i % count));
      break;
    }
    case 6: {
      const auto in = input(count);
      const auto out = rank == root ? output(ranks * count) : std::span<float>();
      group.gather(out, ConstBuffer(in), root);
      EXPECT_VALUES(out, value_of(static_cast<int>(i / count), call, i % count));
      break;
    }
    case 7: {
      const auto in = rank == root ? input(ranks * count) : std::span<float>();
      const auto out = output(count);
      group.scatter(out, ConstBuffer(in), root);
      EXPECT_VALUES(out, value_of(root, call, self * count + i));
      break;
    }
    default:
      call_with_counts(group, op - 8, call, count, input, output, trace);
  }
}

class SharedPaths : public testing::TestWithParam<std::tuple<TransportKind, int>> {};

TEST_P(SharedPaths, agree_in_any_order_of_calls_and_kinds_of_memory) {
  const auto [transport, world] = GetParam();
  run_ranks_ok(world,
               [](ProcessGroup& group) {
                 Buffers buffers(group);
                 std::mt19937 random(harness::random_seed());
                 for (int call = 0; call < kCalls && !testing::Test::HasFatalFailure(); ++call) {
                   call_at_random(group, buffers, random, call);
                 }
               },
               {.transport = transport});
}

INSTANTIATE_TEST_SUITE_P(All, SharedPaths,
                         testing::Combine(testing::Values(TransportKind::kLoopback,
                                                          TransportKind::kShm),
                                          testing::Values(2, 3, 5)),
                         [](const auto& info) {
                           const bool is_shm = std::get<0>(info.param) == TransportKind::kShm;
                           return fmt::format("{}_{}", is_shm ? "shm" : "loopback",
                                              std::get<1>(info.param));
                         });

// Together larger than most machines' last-level cache, which changes how they are copied.
TEST(SharedPaths, move_what_is_larger_than_the_caches) {
  constexpr std::size_t kCount = (12 << 20) / sizeof(float) + 3;
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto memory = group.allocate_symmetric(4 * kCount * sizeof(float));
    const auto input = memory.as<float>().first(2 * kCount);
    const auto output = memory.as<float>().last(2 * kCount);
    const auto self = static_cast<std::size_t>(group.rank());
    const std::string trace;

    fill(input, group.rank(), 1);
    group.all_to_all(output, input);
    EXPECT_VALUES(output, value_of(static_cast<int>(i / kCount), 1, self * kCount + i % kCount));
    group.all_gather(output, input.first(kCount));
    EXPECT_VALUES(output, value_of(static_cast<int>(i / kCount), 1, i % kCount));
    const std::vector<std::size_t> counts = {kCount + 5, kCount - 9};
    const std::size_t first = self * counts[0];
    group.all_gather_v(output.first(2 * kCount - 4), input.first(counts[self]), counts);
    EXPECT_VALUES(output.first(2 * kCount - 4),
                  value_of(i < counts[0] ? 0 : 1, 1, i < counts[0] ? i : i - counts[0]));
    group.reduce_scatter_v(output.first(counts[self]), input.first(2 * kCount - 4), counts);
    EXPECT_VALUES(output.first(counts[self]), sum_at(2, 1, first + i));
    fill(output, group.rank(), 2);
    group.broadcast(output, 1);
    EXPECT_VALUES(output, value_of(1, 2, i));
  });
}

}  // namespace
}  // namespace paceline
