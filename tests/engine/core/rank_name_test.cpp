#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

namespace paceline {
namespace {

TEST(RankName, is_short_where_both_numbers_are_one) {
  EXPECT_EQ(rank_name(3, 3), "rank 3");
  EXPECT_EQ(rank_name(3, 3, "box"), "rank 3 (box)");
}

TEST(RankName, has_the_number_in_the_world_where_that_is_another) {
  EXPECT_EQ(rank_name(1, 3), "rank 1 (rank 3 of the world)");
  EXPECT_EQ(rank_name(1, 3, "box"), "rank 1 (rank 3 of the world, box)");
}

}  // namespace
}  // namespace paceline
