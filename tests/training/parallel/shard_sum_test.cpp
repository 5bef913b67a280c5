#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/parallel/reducer/gradient_buckets.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_call.h"

#include "tests/harness/random_seed.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

constexpr std::int64_t kCount = 1000;

// Shards of numbers whose sum depends on the order.
std::vector<at::Tensor> shards_of_numbers(std::int64_t count) {
  auto generator = at::detail::createCPUGenerator(harness::random_seed());
  std::vector<at::Tensor> shards;
  for (std::int64_t i = 0; i < count; ++i) {
    const at::Tensor exponents = at::randint(-20, 20, {kCount}, generator, at::kFloat);
    shards.push_back(at::randn({kCount}, generator) * at::exp2(exponents));
  }
  return shards;
}

// The sum of all shards over `world` ranks, and the mean, as rank 0 has them.
std::pair<at::Tensor, at::Tensor> sum_over(int world, const std::vector<at::Tensor>& shards) {
  std::pair<at::Tensor, at::Tensor> result;
  harness::run_ranks_ok(world, [&](ProcessGroup& group) {
    const auto count = static_cast<std::int64_t>(shards.size()) / world;
    const std::int64_t first = group.rank() * count;
    ShardSum sum;
    for (int round = 0; round < 2; ++round) {  // the second round begins again
      for (std::int64_t i = first; i + 1 < first + count; ++i) {
        const auto& shard = shards[static_cast<std::size_t>(i)];
        const bool may_keep = i % 3 == 1;
        sum.add(may_keep ? shard.clone() : shard, may_keep);
      }
      const at::Tensor whole = shards[static_cast<std::size_t>(first + count - 1)].clone();
      sum.finish(whole);
      const at::Tensor mean = whole.clone();
      all_reduce(group, whole);
      run(group, {.op = Op::kAllReduce,
                  .input = mean,
                  .output = mean,
                  .reduce_op = ReduceOp::kMean,
                  .divisor = static_cast<std::uint32_t>(shards.size())});
      if (group.rank() == 0) result = {whole, mean};
    }
  });
  return result;
}

TEST(ShardSum, has_the_bits_of_one_rank_a_shard_for_every_number_of_ranks_that_fits) {
  for (const int num_shards : {1, 2, 3, 5, 6, 7, 8, 12}) {
    const auto shards = shards_of_numbers(num_shards);
    const auto [sum, mean] = sum_over(num_shards, shards);
    for (int world = 1; world < num_shards; ++world) {
      const int each = num_shards / world;
      if (num_shards % world != 0 || (world > 1 && (each & (each - 1)) != 0)) continue;
      const auto [other_sum, other_mean] = sum_over(world, shards);
      EXPECT_TRUE(at::equal(other_sum, sum)) << num_shards << " shards, " << world << " ranks";
      EXPECT_TRUE(at::equal(other_mean, mean)) << num_shards << " shards, " << world << " ranks";
    }
  }
}

// Two ranks with three shards each are not subtrees of six, so the result differs: the test above
// can fail.
TEST(ShardSum, has_other_bits_where_the_ranks_do_not_fit) {
  const auto shards = shards_of_numbers(6);
  EXPECT_FALSE(at::equal(sum_over(2, shards).first, sum_over(6, shards).first));
}

TEST(ShardSum, forgets_a_step_that_failed) {
  ShardSum sum;
  sum.add(at::ones({3}), false);
  sum.clear();
  const at::Tensor last = at::ones({3});
  sum.finish(last);
  EXPECT_TRUE(at::equal(last, at::ones({3})));
}

}  // namespace
}  // namespace paceline
