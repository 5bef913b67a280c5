#pragma once

// Bytes as tokens, 0 to 255: a vocabulary that needs no file.

#include "paceline/files/text/tokenizer.h"

namespace paceline::text {

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
  std::int32_t vocabulary_size() const override { return 256; }
  // Of a single byte.
  std::optional<Token> find(std::string_view name) const override;
};

}  // namespace paceline::text
