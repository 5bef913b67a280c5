#include "paceline/engine/core/logical_shards.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

TEST(LogicalShards, fit_ranks_that_have_a_power_of_two_each_and_one_rank_alone) {
  for (const std::int64_t ranks : {1, 2, 4, 8}) EXPECT_TRUE(shards_fit(8, ranks));
  for (const std::int64_t ranks : {1, 3, 6, 12}) EXPECT_TRUE(shards_fit(12, ranks));
  for (const std::int64_t ranks : {2, 4, 5, 24}) EXPECT_FALSE(shards_fit(12, ranks)) << ranks;
  EXPECT_FALSE(shards_fit(8, 0));
}

TEST(LogicalShards, list_the_numbers_of_ranks_that_fit) {
  EXPECT_EQ(ranks_that_fit(8), "1, 2, 4 or 8");
  EXPECT_EQ(ranks_that_fit(12), "1, 3, 6 or 12");
  EXPECT_EQ(ranks_that_fit(7), "1 or 7");
  EXPECT_EQ(ranks_that_fit(2), "1 or 2");
  EXPECT_EQ(ranks_that_fit(1), "1");
}

TEST(LogicalShards, go_to_the_ranks_in_blocks) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto [first, count] = shards_of(8, ranks, rank);
      EXPECT_EQ(first, next);
      next += count;
    }
    EXPECT_EQ(next, 8);
  }
}

TEST(LogicalShards, of_the_number_0_are_an_error) {
  EXPECT_THROW(shards_of(0, 1, 0), Error);
  EXPECT_THROW(shards_of(-8, 2, 0), Error);
}

TEST(LogicalShards, that_do_not_fit_are_an_error_with_the_numbers_that_do) {
  try {
    shards_of(12, 5, 3);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_THAT(error.what(), Says("shards.not_divisible", 3, 12, 5, "1, 3, 6 or 12"));
  }
}

TEST(LogicalShards, have_seeds_of_their_own) {
  std::set<std::uint64_t> seeds;
  for (const std::uint64_t seed : {0, 1}) {
    for (const std::int64_t epoch : {0, 1, 2}) {
      for (const std::int64_t position : {0, 32, 64}) {
        for (std::int64_t shard = 0; shard < 8; ++shard)
          seeds.insert(seed_of_shard(seed, epoch, position, shard));
      }
    }
  }
  EXPECT_EQ(seeds.size(), 2U * 3 * 3 * 8);
}

class Variable {
 public:
  explicit Variable(const char* value) { setenv("PACELINE_LOGICAL_SHARDS", value, 1); }
  ~Variable() { unsetenv("PACELINE_LOGICAL_SHARDS"); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
};

TEST(LogicalShards, come_from_the_launchers_variable) {
  EXPECT_EQ(job_logical_shards(), 0);
  EXPECT_EQ((Variable("8"), job_logical_shards()), 8);
  for (const char* wrong : {"eight", "-1", "8x", "99999999999"}) {
    const Variable variable(wrong);
    EXPECT_THROW(job_logical_shards(), Error) << wrong;
  }
}

}  // namespace
}  // namespace paceline
