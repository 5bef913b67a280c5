#include "tests/harness/says.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace paceline::harness {
namespace {

using testing::Not;

constexpr const char* kText = "start\nrank 1 failed first: exit code 3 (host a)\nend\n";

TEST(Says, compares_arguments_and_leaves_the_rest_of_the_line_open) {
  EXPECT_THAT(kText, Says("run.first_failure"));
  EXPECT_THAT(kText, Says("run.first_failure", 1));
  EXPECT_THAT(kText, Says("run.first_failure", 1, "exit code 3"));
  EXPECT_THAT(kText, Not(Says("run.first_failure", 2)));
  EXPECT_THAT(kText, Not(Says("run.first_failure", 1, "exit code 4")));
}

TEST(Says, finds_parts_on_one_line_only_and_after_a_false_start) {
  EXPECT_FALSE(contains_parts("a\nb", {"a", "b"}));
  EXPECT_TRUE(contains_parts("a\na b", {"a", "b"}));
  EXPECT_FALSE(contains_parts("b a", {"a", "b"}));
}

TEST(Says, refuses_unknown_names_and_too_many_arguments) {
  EXPECT_THROW(Says("no.such.message"), std::invalid_argument);
  EXPECT_THROW(Says("run.first_failure", 1, 2, 3), std::invalid_argument);
}

}  // namespace
}  // namespace paceline::harness
