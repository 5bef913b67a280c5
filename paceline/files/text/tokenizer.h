#pragma once

// Text as tokens and back: what a language model reads and writes.
//
//   const auto tokenizer = BpeTokenizer::read("vocab.json", "merges.txt");
//   const std::vector<Token> tokens = tokenizer.encode("Hello there");
//
// Thread safety: tokenizers are constant; any thread may use them.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::text {

using Token = std::int32_t;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Of any bytes; what is no UTF-8 is not an error.
  virtual std::vector<Token> encode(std::string_view text) const = 0;
  // Error(kInvalid) for a token outside of the vocabulary.
  virtual std::string decode(std::span<const Token> tokens) const = 0;

  // Tokens are 0 to vocabulary_size() - 1.
  virtual std::int32_t vocabulary_size() const = 0;
  // The token that is written so in the vocabulary's file, also one that no text becomes, such as
  // <|endoftext|> or [MASK].
  virtual std::optional<Token> find(std::string_view name) const = 0;
};

}  // namespace paceline::text
