#include <cmath>

#include <gtest/gtest.h>

#include "paceline/engine/core/option_text.h"

namespace paceline {
namespace {

TEST(ParseNumber, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number<int>("42"), 42);
  EXPECT_EQ(parse_number<int>("-1"), -1);
  EXPECT_EQ(parse_number<double>("1e3"), 1000);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "0x1", "4294967296"})
    EXPECT_FALSE(parse_number<int>(text)) << text;
  EXPECT_FALSE(parse_number<unsigned>("-1"));
}

TEST(ParseNumber, RespectsTheRange) {
  EXPECT_EQ(parse_number<int>("1", 1, 3), 1);
  EXPECT_EQ(parse_number<int>("3", 1, 3), 3);
  EXPECT_FALSE(parse_number<int>("0", 1, 3));
  EXPECT_FALSE(parse_number<int>("4", 1, 3));
  EXPECT_FALSE(parse_number<double>("nan", -INFINITY, INFINITY));
}

TEST(Split, KeepsEmptyParts) {
  using Parts = std::vector<std::string_view>;
  EXPECT_EQ(split("a,b", ','), (Parts{"a", "b"}));
  EXPECT_EQ(split(",a,", ','), (Parts{"", "a", ""}));
  EXPECT_EQ(split("", ','), Parts{""});
}

TEST(FormatRanges, JoinsNeighbours) {
  const std::vector<int> numbers = {0, 1, 2, 5, 6, 9};
  EXPECT_EQ(format_ranges(numbers, ",", 2), "0-2,5-6,9");
  EXPECT_EQ(format_ranges(numbers, ", ", 3), "0-2, 5, 6, 9");
  EXPECT_EQ(format_ranks({7, 3, 1, 0, 2}), "0-3, 7");
  EXPECT_EQ(format_ranks({}), "");
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({1, 0}), "ranks 0, 1");
}

}  // namespace
}  // namespace paceline
