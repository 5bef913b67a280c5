#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/world_setup.h"

namespace paceline {
namespace {

TEST(ThreadShare, ranks_that_may_run_anywhere_divide_the_cores) {
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(thread_share({all}, 0), 8);
  EXPECT_EQ(thread_share({all, all}, 1), 4);
  EXPECT_EQ(thread_share({all, all, all}, 2), 2);
  EXPECT_EQ(thread_share(std::vector(8, all), 5), 1);
}

TEST(ThreadShare, is_never_nothing) {
  EXPECT_EQ(thread_share(std::vector(9, std::vector<int>{0, 1}), 8), 1);
  EXPECT_EQ(thread_share({{}, {0}}, 0), 1);
}

TEST(ThreadShare, ranks_keep_cores_that_are_theirs_alone) {
  EXPECT_EQ(thread_share({{0, 1}, {2, 3}}, 0), 2);
  EXPECT_EQ(thread_share({{0, 1}, {2, 3}}, 1), 2);
}

TEST(ThreadShare, a_core_is_divided_among_those_that_may_run_on_it) {
  const std::vector<std::vector<int>> cores = {{0, 1, 2, 3}, {2, 3}};  // shares: 2 + 2/2 and 2/2
  EXPECT_EQ(thread_share(cores, 0), 3);
  EXPECT_EQ(thread_share(cores, 1), 1);
}

TEST(ThreadShare, thirds_add_up) {
  const std::vector<int> three = {0, 1, 2};
  EXPECT_EQ(thread_share({three, three, three}, 0), 1);
  const std::vector<int> six = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(thread_share({six, six, six}, 1), 2);
}

}  // namespace
}  // namespace paceline
