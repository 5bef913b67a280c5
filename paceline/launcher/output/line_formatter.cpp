#include "paceline/launcher/output/line_formatter.h"

namespace paceline::launcher {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

void append_escaped(std::string& line, unsigned char byte) {
  line += "\\x";
  line += kHexDigits[byte >> 4];
  line += kHexDigits[byte & 15];
}

void append_neutral(std::string& line, char byte) {
  const auto value = static_cast<unsigned char>(byte);
  // The second set of control characters, U+0080 to U+009F, is encoded as C2 80 to C2 9F in UTF-8.
  const bool second_set = value >= 0x80 && value < 0xa0 && !line.empty() && line.back() == '\xc2';
  if (second_set) {
    line.pop_back();
    append_escaped(line, value);
  } else if ((value < 0x20 && byte != '\t') || value == 0x7f) {
    append_escaped(line, value);
  } else {
    line += byte;
  }
}

}  // namespace

void LineFormatter::end_line(std::string& out) {
  out += prefix_;
  out += line_;
  out += '\n';
  line_.clear();
}

void LineFormatter::feed(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) {
    const bool completes_pair = after_return_ && byte == '\n';
    after_return_ = byte == '\r';
    if (completes_pair) continue;  // the line ended at its '\r'
    if (byte == '\n' || byte == '\r') {
      if (!was_cut_) end_line(out);
      was_cut_ = false;
      continue;
    }
    append_neutral(line_, byte);
    const bool may_end = line_.back() != '\xc2' || line_.size() > kMaxLine;
    was_cut_ = line_.size() >= kMaxLine && may_end;
    if (was_cut_) end_line(out);
  }
}

void LineFormatter::finish(std::string& out) {
  if (!line_.empty()) end_line(out);
}

std::string neutralise(std::string_view text) {
  std::string neutral;
  for (const char byte : text) {
    if (byte == '\n') {
      neutral += byte;
    } else {
      append_neutral(neutral, byte);
    }
  }
  return neutral;
}

std::string neutralise_in_line(std::string_view text) {
  std::string neutral;
  for (const char byte : text) {
    if (byte == '\t') {
      append_escaped(neutral, static_cast<unsigned char>(byte));
    } else {
      append_neutral(neutral, byte);
    }
  }
  return neutral;
}

}  // namespace paceline::launcher
