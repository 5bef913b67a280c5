#include "paceline/planning/schedules/picture.h"

#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "paceline/planning/schedules/named_schedules.h"

#include "tests/harness/expect_error.h"

namespace paceline::pipeline {
namespace {

int occurrences(const std::string& text, const std::string& word) {
  int count = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(PictureTest, has_a_box_for_each_action_planned_and_measured) {
  const auto schedule = pipeline_schedule("zero-bubble", 3, 4);
  const auto timed = simulate(schedule, equal_costs(3));
  auto measured = timed;
  measured.seconds *= 1.5;
  const auto svg = to_svg({.title = "a < b & c", .planned = timed, .measured = measured});
  EXPECT_EQ(occurrences(svg, "<title>"), 2 * 3 * 4 * 3);
  EXPECT_EQ(occurrences(svg, "<title>2W3: "), 2);
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find("measured: "), std::string::npos);
  EXPECT_EQ(svg.find(">backward<"), std::string::npos) << "the legend has only what is there";
  EXPECT_EQ(to_svg({.title = "", .planned = timed}).find("measured"), std::string::npos);
}

// The numbers at the axis lie within the picture, are round, and are at the right places of the
// scale.
TEST(PictureTest, has_an_axis_of_milliseconds) {
  for (const double seconds : {0.00043, 0.0086, 0.1, 0.999, 1.0, 7.5, 120.0}) {
    auto timed = simulate(pipeline_schedule("1f1b", 2, 3), equal_costs(2));
    const double scale = seconds / timed.seconds;
    timed.seconds = seconds;
    for (auto& rank : timed.ranks) {
      for (auto& action : rank) {
        action.begin_s *= scale;
        action.end_s *= scale;
      }
    }
    const std::string svg = to_svg({.title = "", .planned = timed});
    EXPECT_NE(svg.find(fmt::format(">planned: {:.1f} ms, ", 1e3 * seconds)), std::string::npos);
    const std::regex tick(
        R"re(<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">([\d.e+-]+)</text>\n)re");
    std::vector<std::pair<double, double>> ticks;  // position and milliseconds
    for (std::sregex_iterator at(svg.begin(), svg.end(), tick), end; at != end; ++at)
      ticks.emplace_back(std::stod((*at)[1]), std::stod((*at)[2]));
    ASSERT_GE(ticks.size(), 4U) << seconds;
    EXPECT_LE(ticks.size(), 11U) << seconds;
    EXPECT_EQ(ticks[0].second, 0);
    EXPECT_LE(ticks.back().second, 1e3 * seconds * 1.001);
    const double width = ticks[1].first - ticks[0].first;
    for (std::size_t i = 0; i < ticks.size(); ++i) {
      EXPECT_NEAR(ticks[i].first, ticks[0].first + width * static_cast<double>(i), 0.1);
      EXPECT_NEAR(ticks[i].second, ticks[1].second * static_cast<double>(i),
                  1e-4 * ticks.back().second);
      EXPECT_LE(ticks[i].first, 1100);
    }
  }
}

TEST(PictureTest, a_trace_has_planned_and_measured_ranks_beside_each_other) {
  const auto timed = simulate(pipeline_schedule("1f1b", 2, 3), equal_costs(2));
  const auto text = to_trace({.title = "", .planned = timed, .measured = timed});
  EXPECT_EQ(occurrences(text, R"("ph":"X")"), 2 * 2 * 3 * 2);
  EXPECT_EQ(occurrences(text, R"({"ph":"X","pid":2,"tid":1,"name":"1F0","cat":"forward",)"
                              R"("ts":1000000.000,"dur":1000000.000})"),
            1);
  EXPECT_EQ(occurrences(text, R"("name":"process_name","args":{"name":"measured"})"), 1);
  EXPECT_EQ(occurrences(text, R"("args":{"name":"rank 1"})"), 2);
  EXPECT_EQ(text.find(",\n]"), std::string::npos);
  EXPECT_EQ(to_trace({.title = "", .planned = timed}).find("measured"), std::string::npos);
  expect_error(ErrorCode::kInvalid, {"needs a step"}, [] { to_trace({}); });
}

TEST(PictureTest, needs_a_step_that_takes_time) {
  expect_error(ErrorCode::kInvalid, {"a step that takes time"}, [] { to_svg({}); });
}

}  // namespace
}  // namespace paceline::pipeline
