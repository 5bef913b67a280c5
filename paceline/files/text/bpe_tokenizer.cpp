#include <limits>
#include <queue>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/files/text/tokenizer.h"
#include "paceline/files/text/unicode.h"

namespace paceline::text {

std::vector<Token> ByteTokenizer::encode(std::string_view text) const {
  std::vector<Token> tokens;
  tokens.reserve(text.size());
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const Token token : tokens) {
    check(token >= 0 && token < vocabulary_size(), "decode: token {} is not a byte", token);
    text.push_back(static_cast<char>(token));
  }
  return text;
}

std::optional<Token> ByteTokenizer::find(std::string_view name) const {
  if (name.size() != 1) return std::nullopt;
  return static_cast<unsigned char>(name.front());
}

namespace {

// The files write every byte as a visible letter: visible bytes stand for themselves, all others
// are written as the characters from 256 on, in order.
struct ByteLetters {
  std::array<char32_t, 256> letter{};
  std::unordered_map<char32_t, unsigned char> byte;

  ByteLetters() {
    char32_t next = 256;
    for (unsigned value = 0; value < 256; ++value) {
      const bool is_itself = (value >= '!' && value <= '~') || (value >= 0xA1 && value <= 0xAC) ||
                             (value >= 0xAE && value <= 0xFF);
      letter[value] = is_itself ? char32_t(value) : next++;
      byte.emplace(letter[value], static_cast<unsigned char>(value));
    }
  }
};

const ByteLetters& byte_letters() {
  static const auto& letters = *new ByteLetters;  // never destroyed: tokenizers may be globals
  return letters;
}

// Returns the bytes that a name in the vocabulary stands for. A name with a character that is not
// in ByteLetters, such as a space, stands for its own bytes.
std::string bytes_of(std::string_view name) {
  std::string bytes;
  for (std::size_t at = 0; at < name.size();) {
    const Character character = first_character(name.substr(at));
    const auto found = byte_letters().byte.find(character.code);
    if (found == byte_letters().byte.end()) return std::string(name);
    bytes.push_back(static_cast<char>(found->second));
    at += character.bytes;
  }
  return bytes;
}

std::uint64_t pair_of(Token left, Token right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

}  // namespace

BpeTokenizer BpeTokenizer::read(const std::string& vocabulary_file,
                                const std::string& merges_file) {
  BpeTokenizer tokenizer;
  tokenizer.read_vocabulary(vocabulary_file);
  tokenizer.read_merges(merges_file);
  return tokenizer;
}

void BpeTokenizer::read_vocabulary(const std::string& file) {
  const auto json = parse_json_or_discard(read_text_file(file));
  if (!json.is_object() || json.empty()) {
    fail(ErrorCode::kCorrupt, "{}: not a JSON object of tokens and their numbers", file);
  }
  names_.resize(json.size());
  std::vector<bool> is_known(json.size());
  for (const auto& [name, number] : json.items()) {
    const bool is_number = number.is_number_unsigned();
    const auto token = is_number ? number.get<std::uint64_t>() : 0;
    if (!is_number || token >= names_.size() || is_known[token]) {
      fail(ErrorCode::kCorrupt,
           "{}: {} has the number {}; {} tokens must have the numbers 0 to {}, each once", file,
           name, json_text(number), names_.size(), names_.size() - 1);
    }
    is_known[token] = true;
    names_[token] = name;
    tokens_.emplace(name, static_cast<Token>(token));
  }
  for (const auto& name : names_) bytes_.push_back(bytes_of(name));
  for (std::size_t value = 0; value < byte_tokens_.size(); ++value) {
    std::string name;
    append_utf8(byte_letters().letter[value], name);
    const auto token = find(name);
    if (!token) fail(ErrorCode::kCorrupt, "{}: no token for the byte {}", file, value);
    byte_tokens_[value] = *token;
  }
}

void BpeTokenizer::read_merges(const std::string& file) {
  const std::string text = read_text_file(file);
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    const auto left = find(line.substr(0, space));
    const auto right =
        space == std::string_view::npos ? std::nullopt : find(line.substr(space + 1));
    const auto both = left && right ? find(names_[static_cast<std::size_t>(*left)] +
                                           names_[static_cast<std::size_t>(*right)])
                                    : std::nullopt;
    if (!both) {
      fail(
          ErrorCode::kCorrupt,
          "{}:{}: '{}' is not a pair of tokens that the vocabulary has, each alone and both joined",
          file, line_number, line);
    }
    merges_.try_emplace(pair_of(*left, *right), Merge{merges_.size(), *both});
  }
}

std::optional<Token> BpeTokenizer::find(std::string_view name) const {
  const auto found = tokens_.find(std::string(name));
  return found == tokens_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Token> BpeTokenizer::encode(std::string_view text) const {
  std::vector<Token> tokens;
  for (const std::string_view word : split_for_gpt2(text)) encode_word(word, tokens);
  return tokens;
}

// The tokens of a word form a linked list, so that a merge moves nothing. Pairs wait in a queue,
// ordered by the rank of their merge (its position in the file of merges), then by their place in
// the word.
void BpeTokenizer::encode_word(std::string_view word, std::vector<Token>& tokens) const {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  struct Part {
    Token token;
    std::size_t before, after;
  };
  struct Candidate {
    std::size_t rank, at;
    Token left, right, both;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  std::vector<Part> parts;
  for (std::size_t i = 0; i < word.size(); ++i) {
    parts.push_back({byte_tokens_[static_cast<unsigned char>(word[i])], i == 0 ? kNone : i - 1,
                     i + 1 == word.size() ? kNone : i + 1});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t at) {
    if (at == kNone || parts[at].after == kNone) return;
    const Token left = parts[at].token;
    const Token right = parts[parts[at].after].token;
    const auto found = merges_.find(pair_of(left, right));
    if (found == merges_.end()) return;
    candidates.push({found->second.rank, at, left, right, found->second.token});
  };
  for (std::size_t i = 0; i < parts.size(); ++i) consider(i);
  constexpr Token kGone = -1;
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Part& part = parts[best.at];
    // If the pair has changed since it was queued, its new form has an entry of its own.
    if (part.token != best.left || part.after == kNone || parts[part.after].token != best.right)
      continue;
    Part& next = parts[part.after];
    part.token = best.both;
    next.token = kGone;
    part.after = next.after;
    if (part.after != kNone) parts[part.after].before = best.at;
    consider(part.before);
    consider(best.at);
  }
  for (const Part& part : parts) {
    if (part.token != kGone) tokens.push_back(part.token);
  }
}

std::string BpeTokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    check(token >= 0 && token < vocabulary_size(),
          "decode: token {} is outside the vocabulary of {} tokens", token, vocabulary_size());
    text += bytes_[static_cast<std::size_t>(token)];
  }
  return text;
}

}  // namespace paceline::text
