#include "apps/bench/contestant/pattern.h"

#include <cstring>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline::bench {
namespace {

using Bytes = std::vector<std::byte>;

Bytes written(const Pattern& pattern, std::size_t bytes, int rank, std::uint64_t call) {
  Bytes buffer(bytes);
  pattern.write(buffer, rank, call);
  return buffer;
}

Collective collective(Op op, Dtype dtype, std::size_t count, Bytes& output) {
  Collective call;
  call.op = op;
  call.dtype = dtype;
  call.count = count;
  call.output = output.data();
  return call;
}

class PatternOf : public testing::TestWithParam<std::tuple<Dtype, int>> {};

// The engine's own kernel computes the sum. With many ranks, bfloat16 is the type with the least
// precision.
TEST_P(PatternOf, sums_are_exact) {
  const auto [dtype, ranks] = GetParam();
  constexpr std::size_t kCount = 2000;
  const Pattern pattern(dtype, ranks);
  std::vector<Bytes> inputs;
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < ranks; ++rank)
    inputs.push_back(written(pattern, kCount * size_of(dtype), rank, 7));
  for (const Bytes& input : inputs) sources.push_back(input.data());
  Bytes output(kCount * size_of(dtype));
  reduce(sources, output.data(), kCount, dtype, ReduceOp::kSum);
  const auto call = collective(Op::kAllReduce, dtype, kCount, output);
  EXPECT_FALSE(pattern.compare(call, 0, 7));
}

INSTANTIATE_TEST_SUITE_P(All, PatternOf,
                         testing::Combine(testing::ValuesIn(kAllDtypes),
                                          testing::Values(1, 2, 3, 8, 100, kMaxRanks)));

TEST(PatternTest, one_wrong_element_is_found) {
  const Pattern pattern(Dtype::kInt32, 2);
  Bytes output = written(pattern, 4000, 0, 1);
  const auto call = collective(Op::kBroadcast, Dtype::kInt32, 1000, output);
  EXPECT_FALSE(pattern.compare(call, 1, 1));
  std::int32_t value = 0;
  std::memcpy(&value, output.data() + 777 * 4, 4);
  const std::int32_t wrong = value + 1;
  std::memcpy(output.data() + 777 * 4, &wrong, 4);
  const auto difference = pattern.compare(call, 1, 1);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->index, 777u);
  EXPECT_EQ(difference->found, wrong);
  EXPECT_EQ(difference->expected, value);
}

TEST(PatternTest, another_calls_and_another_ranks_values_differ) {
  const Pattern pattern(Dtype::kFloat32, 2);
  EXPECT_NE(written(pattern, 64, 0, 1), written(pattern, 64, 0, 2));
  EXPECT_NE(written(pattern, 64, 0, 1), written(pattern, 64, 1, 1));
}

// The expected blocks of all ranks are put together by hand.
TEST(PatternTest, blocks_lie_where_the_operation_puts_them) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 700, kBytes = kCount * 4;
  const Pattern pattern(Dtype::kFloat32, kRanks);
  Bytes gathered, exchanged, scattered;
  constexpr int kMe = 1;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Bytes block = written(pattern, kBytes, rank, 5);
    gathered.insert(gathered.end(), block.begin(), block.end());
    const Bytes whole = written(pattern, kRanks * kBytes, rank, 5);
    exchanged.insert(exchanged.end(), whole.begin() + kMe * kBytes,
                     whole.begin() + (kMe + 1) * kBytes);
    if (rank == 0) scattered.assign(whole.begin() + kMe * kBytes, whole.begin() + 2 * kBytes);
  }
  const auto right = [&](Op op, Bytes& output) {
    return !pattern.compare(collective(op, Dtype::kFloat32, kCount, output), kMe, 5);
  };
  EXPECT_TRUE(right(Op::kAllGather, gathered));
  EXPECT_TRUE(right(Op::kAllToAll, exchanged));
  EXPECT_TRUE(right(Op::kScatter, scattered));
  EXPECT_FALSE(right(Op::kAllGather, exchanged));
  EXPECT_FALSE(right(Op::kAllToAll, gathered));
}

TEST(PatternTest, a_rank_without_an_output_has_nothing_to_compare) {
  const Pattern pattern(Dtype::kFloat32, 2);
  Collective call;
  call.op = Op::kGather;
  call.dtype = Dtype::kFloat32;
  call.count = 10;
  EXPECT_FALSE(pattern.compare(call, 1, 1));
}

}  // namespace
}  // namespace paceline::bench
