#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/bench/operation.h"
#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using harness::Says;
using testing::ElementsAre;

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

std::string refusal(const char* text) {
  try {
    parse_sizes(text);
  } catch (const SizeError& error) {
    return error.what();
  }
  return "";
}

TEST(WrongSizes, are_refused_with_the_part_that_is_wrong) {
  for (const char* text :
       {"", "0", "-1", "2G", "1T", "4iB", "4 K", "1.5M", "99999999999999999999", "17179869184G"})
    EXPECT_THAT(refusal(text), Says("bench.not_a_size", text));
  EXPECT_THAT(refusal("4K,"), Says("bench.not_a_size", ""));
  EXPECT_THAT(refusal("1M:4K"), Says("bench.range_falls", "1M:4K"));
  EXPECT_THAT(refusal("8:64:1"), Says("bench.not_a_factor", 1));
  EXPECT_THAT(refusal("8:64:x"), Says("bench.not_a_factor", "x"));
  EXPECT_THAT(refusal("8:64:2K"), Says("bench.not_a_factor", "2K"));
  EXPECT_THAT(refusal("8:64:2:2"), Says("bench.not_a_range", "8:64:2:2"));
}

}  // namespace
}  // namespace paceline::bench
