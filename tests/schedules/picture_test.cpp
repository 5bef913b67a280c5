#include "paceline/schedules/picture.h"

#include <gtest/gtest.h>

#include "paceline/schedules/named_plans.h"
#include "paceline/schedules/trace.h"

#include "tests/harness/expect_error.h"

namespace paceline::pipeline {
namespace {

int occurrences(const std::string& text, const std::string& word) {
  int count = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(PictureTest, has_a_box_for_each_action_planned_and_measured) {
  const auto plan = zero_bubble({3, 4});
  const auto timed = simulate(plan, equal_costs(3));
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

TEST(PictureTest, a_trace_has_planned_and_measured_ranks_beside_each_other) {
  const auto timed = simulate(one_f_one_b({2, 3}), equal_costs(2));
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
