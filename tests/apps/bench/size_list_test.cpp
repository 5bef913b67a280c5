#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/bench/operation.h"

namespace paceline::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(SizeListTest, units_are_powers_of_1024) {
  EXPECT_THAT(parse_sizes("8,4K,64KB,1MiB,1G"),
              ElementsAre(8, 4096, 65536, 1 << 20, std::size_t(1) << 30));
}

TEST(SizeListTest, a_list_is_sorted_and_has_no_duplicates) {
  EXPECT_THAT(parse_sizes("1M,4K,1024K,4096"), ElementsAre(4096, 1 << 20));
}

TEST(SizeListTest, ranges_multiply) {
  EXPECT_THAT(parse_sizes("8:512"), ElementsAre(8, 32, 128, 512));
  EXPECT_THAT(parse_sizes("8:64:2"), ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(parse_sizes("8:100:10,3"), ElementsAre(3, 8, 80));
  EXPECT_THAT(parse_sizes("8:8"), ElementsAre(8));
}

struct Wrong {
  const char* text;
  const char* message;
};
class WrongSizes : public testing::TestWithParam<Wrong> {};

TEST_P(WrongSizes, are_refused_with_the_part_that_is_wrong) {
  try {
    parse_sizes(GetParam().text);
    FAIL() << GetParam().text;
  } catch (const SizeError& error) {
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Texts, WrongSizes,
    testing::Values(
        Wrong{"", "'' is not a size from 1 to 1G"}, Wrong{"4K,", "'' is not a size"},
        Wrong{"0", "'0' is not a size"}, Wrong{"-1", "'-1' is not a size"},
        Wrong{"2G", "'2G' is not a size"}, Wrong{"1T", "'1T' is not a size"},
        Wrong{"4iB", "'4iB' is not a size"}, Wrong{"4 K", "'4 K' is not a size"},
        Wrong{"1.5M", "'1.5M' is not a size"}, Wrong{"99999999999999999999", "is not a size"},
        Wrong{"17179869184G", "is not a size"}, Wrong{"1M:4K", "'1M:4K' runs from large to small"},
        Wrong{"8:64:1", "'1' is not a factor from 2 to 1024"}, Wrong{"8:64:x", "'x' is not"},
        Wrong{"8:64:2K", "'2K' is not"}, Wrong{"8:64:2:2", "'8:64:2:2' is not a size or"}));

}  // namespace
}  // namespace paceline::bench
