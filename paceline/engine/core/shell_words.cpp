#include "paceline/engine/core/shell_words.h"

#include <algorithm>
#include <cctype>

#include "paceline/engine/core/check.h"

namespace paceline {
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
