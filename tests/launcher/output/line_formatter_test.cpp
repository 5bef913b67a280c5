#include "paceline/launcher/output/line_formatter.h"

#include <gtest/gtest.h>

namespace paceline::launcher {
namespace {

std::string formatted(const std::string& text, std::size_t piece) {
  LineFormatter formatter("[1] ");
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += piece) formatter.feed(text.substr(i, piece), out);
  formatter.finish(out);
  return out;
}

TEST(LineFormatter, gives_the_same_lines_however_the_bytes_arrive) {
  const std::string text = "one\ntwo \x1b[31mred\x07\r\nthr\xc3\xbc\xe2\x82\xac\rfour\t.\n\nlast";
  const std::string expected =
      "[1] one\n[1] two \\x1b[31mred\\x07\n[1] thr\xc3\xbc\xe2\x82\xac\n[1] four\t.\n[1] \n[1] "
      "last\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece)
    EXPECT_EQ(formatted(text, piece), expected);
}

TEST(LineFormatter, shows_every_kind_of_control_character_as_text) {
  EXPECT_EQ(formatted(std::string("\0\x7f\xc2\x9b"
                                  "2J\xc2\xa0",
                                  8),
                      1),
            "[1] \\x00\\x7f\\x9b2J\xc2\xa0\n");
}

TEST(LineFormatter, a_place_in_a_line_has_neither_tabs_nor_line_ends) {
  EXPECT_EQ(neutralise_in_line("a\tb\nc\rd\x1b[0m\xc3\xbc"), "a\\x09b\\x0ac\\x0dd\\x1b[0m\xc3\xbc");
  EXPECT_EQ(neutralise("a\tb\nc\x1b[0m"), "a\tb\nc\\x1b[0m");
}

TEST(LineFormatter, cuts_a_line_of_bytes_that_only_begin_characters) {
  LineFormatter formatter("");
  std::string out;
  formatter.feed(std::string(10 * LineFormatter::kMaxLine, '\xc2'), out);
  EXPECT_GT(out.size(), 9 * LineFormatter::kMaxLine);
}

TEST(LineFormatter, cuts_a_line_that_does_not_end) {
  const std::string out = formatted(std::string(3 * LineFormatter::kMaxLine, 'x'), 1000);
  EXPECT_EQ(out.size(), 3 * (LineFormatter::kMaxLine + 5));
}

TEST(LineFormatter, a_line_of_exactly_the_greatest_length_is_followed_by_no_empty_line) {
  const std::string longest(LineFormatter::kMaxLine, 'x');
  const std::string line = "[1] " + longest + "\n";
  for (const char* end : {"\n", "\r", "\r\n"}) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{1000}, 3 * longest.size()}) {
      EXPECT_EQ(formatted(longest + end, piece), line);
      EXPECT_EQ(formatted(longest + longest + end + "next" + end, piece),
                line + line + "[1] next\n");
      EXPECT_EQ(formatted(longest + end + end, piece), line + "[1] \n");
    }
  }
}

}  // namespace
}  // namespace paceline::launcher
