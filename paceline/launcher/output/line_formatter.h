#pragma once

// Makes the output of one rank fit to stand between the lines of others: whole lines only, each
// behind the rank's prefix, with control and escape characters shown as text ("\x1b"), so that a
// rank cannot colour, move or erase what others wrote.
//
// A line that does not end is cut at kMaxLine bytes, so memory stays bounded whatever a rank
// writes.

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
};

// `text` with control characters shown as text; tabs and line ends stay.
std::string neutralise(std::string_view text);
// The same for a place within a line, such as a column: shows line ends and tabs as text as well.
std::string neutralise_in_line(std::string_view text);

}  // namespace paceline::launcher
