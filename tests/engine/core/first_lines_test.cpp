#include <gtest/gtest.h>

#include "paceline/engine/core/error_text.h"

namespace paceline {
namespace {

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "\n  " + std::to_string(i);
  return text;
}

TEST(FirstLines, at_most_eight_lines_are_kept_and_the_others_counted) {
  for (const int count : {0, 1, 8}) EXPECT_EQ(first_lines(lines(count)), lines(count));
  EXPECT_EQ(first_lines(lines(9)), lines(8) + "\n  and 1 other");
  EXPECT_EQ(first_lines(lines(100)), lines(8) + "\n  and 92 others");
}

}  // namespace
}  // namespace paceline
