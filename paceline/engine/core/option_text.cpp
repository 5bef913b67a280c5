#include "paceline/engine/core/option_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/number_text.h"

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
  return quantity(setting, kUnits, "a rate as 25Gbit (kbit, Mbit, Gbit, Tbit)") / kBitsPerByte;
}

double duration(const Setting& setting) {
  constexpr std::array<Unit, 6> kUnits = {
      {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}}};
  return quantity(setting, kUnits, "a time as 20us (us, ms, s, min, h, d)");
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
          "{}: '{}': no shell reads this, so '{}' has no meaning here; put it in single quotes if "
          "it belongs to a word",
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

}  // namespace paceline
