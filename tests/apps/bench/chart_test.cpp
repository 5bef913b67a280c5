#include "apps/bench/chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paceline::bench {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(ChartTest, decades_are_divided_when_there_are_few) {
  EXPECT_THAT(decimal_ticks(0.9, 60), ElementsAre(1, 2, 5, 10, 20, 50));
  EXPECT_THAT(decimal_ticks(0.5, 20000), ElementsAre(1, 10, 100, 1000, 10000));
}

TEST(ChartTest, sizes_are_marked_at_powers_of_two_and_not_too_many) {
  EXPECT_THAT(binary_ticks(4000, 40000), ElementsAre(4096, 8192, 16384, 32768));
  const auto many = binary_ticks(8, 1 << 30);
  EXPECT_LE(many.size(), 11u);
  EXPECT_GE(many.size(), 6u);
}

Chart chart_of(std::vector<ChartPoint> points) {
  const auto text = [](double value) { return std::to_string(static_cast<int>(value)); };
  return {"<title>", "x", "y", text, text, {{"a & b", {"#123456", "2 4", 'd', 2}, points}}};
}

TEST(ChartTest, text_is_escaped) {
  const std::string svg = to_svg(chart_of({{8, 1, 1, 1}, {64, 2, 1, 3}}));
  EXPECT_THAT(svg, HasSubstr("&lt;title&gt;"));
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_THAT(svg, Not(HasSubstr("<title>")));
}

TEST(ChartTest, one_point_is_enough) {
  const std::string svg = to_svg(chart_of({{4096, 3, 3, 3}}));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(ChartTest, a_spread_is_a_bar) {
  const auto bars = [](const std::string& svg) { return svg.find("stroke-opacity") != svg.npos; };
  EXPECT_TRUE(bars(to_svg(chart_of({{8, 2, 1, 3}}))));
  EXPECT_FALSE(bars(to_svg(chart_of({{8, 2, 2, 2}}))));
}

}  // namespace
}  // namespace paceline::bench
