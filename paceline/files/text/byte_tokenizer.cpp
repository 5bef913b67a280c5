#include "paceline/files/text/byte_tokenizer.h"

#include "paceline/engine/core/check.h"

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
    check(token >= 0 && token < vocabulary_size(), "decode: token {} is no byte", token);
    text.push_back(static_cast<char>(token));
  }
  return text;
}

std::optional<Token> ByteTokenizer::find(std::string_view name) const {
  if (name.size() != 1) return std::nullopt;
  return static_cast<unsigned char>(name.front());
}

}  // namespace paceline::text
