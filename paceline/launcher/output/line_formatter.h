#pragma once

// Prepares the output of one rank to be printed among the lines of other ranks: only whole lines,
// each after the rank's prefix, with control and escape characters shown as text ("\x1b"), so that
// a rank cannot colour, move or erase the output of other ranks.
//
// A line that is longer than kMaxLine bytes is cut there, and the rest is a line of its own, so
// memory stays bounded whatever a rank writes. Without a rest there is no second line.

#include <string>
#include <string_view>

namespace paceline::launcher {

class LineFormatter {
 public:
  static constexpr std::size_t kMaxLine = 16 << 10;

  explicit LineFormatter(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends the lines that `bytes` completes to `out`.
  void feed(std::string_view bytes, std::string& out);
  // Appends the last, unfinished line.
  void finish(std::string& out);

 private:
  void end_line(std::string& out);

  std::string prefix_;
  std::string line_;
  bool after_return_ = false;
  bool was_cut_ = false;  // the last byte ended a line at kMaxLine
};

// Returns `text` with control characters shown as text; keeps tabs and newlines.
std::string neutralise(std::string_view text);
// As above, for a text inside a line, such as a column: also shows newlines and tabs as text.
std::string neutralise_in_line(std::string_view text);

}  // namespace paceline::launcher
