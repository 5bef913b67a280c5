#include "paceline/engine/core/option_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"

namespace paceline {

void Setting::refuse(std::string_view allowed) const {
  throw SettingError(fmt::format("{}={}: not {}", key, value, allowed));
}

int Setting::whole_number(int least, int most) const {
  const auto number = parse_number<int>(value, least, most);
  if (!number) refuse(fmt::format("a whole number from {} to {}", least, most));
  return *number;
}

double quantity(const Setting& setting, std::span<const Unit> units, std::string_view allowed) {
  const std::string_view text = setting.value;
  double value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || !std::isfinite(value) || value <= 0) setting.refuse(allowed);
  const std::string_view unit = text.substr(static_cast<std::size_t>(stop - text.data()));
  for (const auto& [name, factor] : units) {
    if (unit == name) return value * factor;
  }
  setting.refuse(allowed);
}

double rate(const Setting& setting) {
  constexpr double kBitsPerByte = 8;
  constexpr std::array<Unit, 4> kUnits = {
      {{"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {"Tbit", 1e12}}};
  return quantity(setting, kUnits, "a rate such as 25Gbit (kbit, Mbit, Gbit, Tbit)") / kBitsPerByte;
}

double duration(const Setting& setting) {
  constexpr std::array<Unit, 6> kUnits = {
      {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}}};
  return quantity(setting, kUnits, "a time such as 20us (us, ms, s, min, h, d)");
}

void for_each_setting(std::string_view text, const std::function<void(const Setting&)>& take) {
  std::set<std::string_view> seen;
  for (const std::string_view item : split(text, ',')) {
    const std::size_t equals = std::min(item.find('='), item.size());
    const Setting setting{item.substr(0, equals), item.substr(std::min(equals + 1, item.size()))};
    take(setting);
    if (!seen.insert(setting.key).second)
      throw SettingError(fmt::format("{} is given twice", setting.key));
  }
}

namespace {

class Splitter {
 public:
  Splitter(const std::string& text, const std::string& what) : text_(text), what_(what) {}

  std::vector<std::string> split() {
    while (at_ < text_.size()) take(text_[at_++]);
    end_word();
    return std::move(words_);
  }

 private:
  void take(char c) {
    if (c == ' ' || c == '\t' || c == '\n') return end_word();
    in_word_ = true;
    if (c == '\'') return take_single_quoted();
    if (c == '"') return take_double_quoted();
    if (c == '\\') return take_escaped();
    refuse_special(c, "$`;|&<>()");
    word_ += c;
  }

  void take_single_quoted() {
    const auto end = text_.find('\'', at_);
    check(end != std::string::npos, "{}: '{}': a ' is not closed", what_, text_);
    word_ += text_.substr(at_, end - at_);
    at_ = end + 1;
  }

  void take_double_quoted() {
    for (;;) {
      check(at_ < text_.size(), "{}: '{}': a \" is not closed", what_, text_);
      const char c = text_[at_++];
      if (c == '"') return;
      refuse_special(c, "$`");
      const bool escapes =
          c == '\\' && at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\\');
      word_ += escapes ? text_[at_++] : c;
    }
  }

  void take_escaped() {
    check(at_ < text_.size(), "{}: '{}' ends with a backslash", what_, text_);
    word_ += text_[at_++];
  }

  void refuse_special(char c, std::string_view special) {
    check(special.find(c) == std::string_view::npos,
          "{}: '{}': this text is not passed to a shell, so '{}' has no special meaning; to use it "
          "literally, put it in single quotes",
          what_, text_, c);
  }

  void end_word() {
    if (in_word_) words_.push_back(std::move(word_));
    word_.clear();
    in_word_ = false;
  }

  const std::string& text_;
  const std::string& what_;
  std::size_t at_ = 0;
  std::string word_;
  bool in_word_ = false;
  std::vector<std::string> words_;
};

}  // namespace

std::string shell_quoted(std::string_view word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::vector<std::string> split_shell_words(const std::string& text, const std::string& what) {
  return Splitter(text, what).split();
}

std::string shell_line(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

int edit_distance(const std::string& a, const std::string& b) {
  // Rows of the dynamic-programming table: two rows back, one row back, the current row.
  std::vector<int> before, previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({replace, previous[j] + 1, current[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before = previous;
    previous = current;
  }
  return previous[b.size()];
}

namespace {

// How far `word` is from `typed`, as a comparable value. If two words have equal edit distances,
// the user more probably means the word with which `typed` begins ("topp" begins with "top"), or
// else the word with the longer common prefix.
std::tuple<int, bool, std::ptrdiff_t> remoteness(const std::string& typed,
                                                 const std::string& word) {
  const bool beginning = typed.size() >= 3 && word.starts_with(typed);
  const auto common = std::mismatch(typed.begin(), typed.end(), word.begin(), word.end()).first;
  return {beginning ? 1 : edit_distance(typed, word), !typed.starts_with(word),
          typed.begin() - common};
}

}  // namespace

std::string nearest(const std::string& typed, const std::vector<std::string>& known) {
  std::string best;
  const auto length = static_cast<int>(typed.size());
  std::tuple<int, bool, std::ptrdiff_t> smallest{std::min(length / 3 + 1, length / 2) + 1, false,
                                                 -length};
  for (const std::string& word : known) {
    const auto here = remoteness(typed, word);
    if (here < smallest) {
      smallest = here;
      best = word;
    }
  }
  return best;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string format_ranges(std::span<const int> numbers, std::string_view separator,
                          std::size_t least_joined) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    const bool is_joined = end - begin >= std::max<std::size_t>(2, least_joined);
    if (!is_joined) end = begin + 1;
    text.append(text.empty() ? "" : separator).append(std::to_string(numbers[begin]));
    if (is_joined) text.append("-").append(std::to_string(numbers[end - 1]));
    begin = end;
  }
  return text;
}

std::string format_ranks(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  return format_ranges(ranks, ", ", 3);
}

std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + format_ranks(ranks);
}

}  // namespace paceline
