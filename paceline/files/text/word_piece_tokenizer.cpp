#include <algorithm>

#include "paceline/engine/core/check.h"
#include "paceline/files/text/tokenizer.h"
#include "paceline/files/text/unicode.h"

namespace paceline::text {
namespace {

// The longest word, in characters; BERT treats a longer word as unknown.
constexpr std::size_t kLongestWord = 100;
constexpr std::string_view kContinued = "##";

bool is_bert_space(char32_t code) {
  return code == '\t' || code == '\n' || code == '\r' || (is_space(code) && !is_control(code));
}

// All punctuation of ASCII counts, including signs that Unicode classifies as symbols.
bool is_bert_punctuation(char32_t code) {
  return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
         (code >= '[' && code <= '`') || (code >= '{' && code <= '~') || is_punctuation(code);
}

// Chinese characters, which are words of their own.
bool is_ideograph(char32_t code) {
  return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
         (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B820 && code <= 0x2CEAF) ||
         (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

std::size_t count_characters(std::string_view word) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < word.size(); ++count) at += first_character(word.substr(at)).bytes;
  return count;
}

std::vector<std::string> split_for_bert(std::string_view text, bool is_lower_case) {
  std::vector<std::string> words;
  std::string word, plain;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  const auto add = [&](char32_t code) {
    const bool is_alone = is_bert_punctuation(code) || is_ideograph(code);
    if (is_alone) end_word();
    append_utf8(code, word);
    if (is_alone) end_word();
  };
  for (std::size_t at = 0; at < text.size();) {
    const Character character = first_character(text.substr(at));
    at += character.bytes;
    const char32_t code = character.code;
    if (is_bert_space(code)) {
      end_word();
    } else if (code == kNoCharacter || code == 0 || code == 0xFFFD || is_control(code)) {
      continue;  // bytes of no character and control characters are dropped
    } else if (!is_lower_case) {
      add(code);
    } else {
      plain.clear();
      append_plain_lower_case(code, plain);
      for (std::size_t i = 0; i < plain.size();) {
        const Character part = first_character(std::string_view(plain).substr(i));
        add(part.code);
        i += part.bytes;
      }
    }
  }
  end_word();
  return words;
}

}  // namespace

WordPieceTokenizer WordPieceTokenizer::read(const std::string& vocabulary_file,
                                            bool is_lower_case) {
  const std::string text = read_text_file(vocabulary_file);
  WordPieceTokenizer tokenizer;
  tokenizer.is_lower_case_ = is_lower_case;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string name = text.substr(begin, end - begin);
    begin = end + 1;
    if (name.ends_with('\r')) name.pop_back();
    const auto token = static_cast<Token>(tokenizer.names_.size());
    if (!tokenizer.tokens_.emplace(name, token).second) {
      fail(ErrorCode::kCorrupt, "{}:{}: the token '{}' appears twice", vocabulary_file, token + 1,
           name);
    }
    tokenizer.longest_name_ = std::max(tokenizer.longest_name_, name.size());
    tokenizer.names_.push_back(std::move(name));
  }
  const auto unknown = tokenizer.find("[UNK]");
  if (!unknown) fail(ErrorCode::kCorrupt, "{}: the token [UNK] is missing", vocabulary_file);
  tokenizer.unknown_ = *unknown;
  return tokenizer;
}

std::optional<Token> WordPieceTokenizer::find(std::string_view name) const {
  const auto found = tokens_.find(std::string(name));
  return found == tokens_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Token> WordPieceTokenizer::encode(std::string_view text) const {
  std::vector<Token> tokens;
  for (const std::string& word : split_for_bert(text, is_lower_case_)) encode_word(word, tokens);
  return tokens;
}

void WordPieceTokenizer::encode_word(std::string_view word, std::vector<Token>& tokens) const {
  const std::size_t before = tokens.size();
  bool fits = count_characters(word) <= kLongestWord;
  for (std::size_t begin = 0; fits && begin < word.size();) {
    const std::string prefix(begin > 0 ? kContinued : "");
    std::size_t length = std::min(word.size() - begin, longest_name_);
    std::optional<Token> piece;
    while (length > 0 && !(piece = find(prefix + std::string(word.substr(begin, length)))))
      --length;
    fits = piece.has_value();
    if (fits) tokens.push_back(*piece);
    begin += length;
  }
  if (fits) return;
  tokens.resize(before);
  tokens.push_back(unknown_);
}

std::string WordPieceTokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    check(token >= 0 && token < vocabulary_size(),
          "decode: token {} is outside the vocabulary of {} tokens", token, vocabulary_size());
    std::string_view name = names_[static_cast<std::size_t>(token)];
    if (name.starts_with(kContinued)) {
      name.remove_prefix(kContinued.size());
    } else if (!text.empty()) {
      text.push_back(' ');
    }
    text += name;
  }
  return text;
}

}  // namespace paceline::text
