#pragma once

// GPT-2's tokenizer: byte-level pair encoding (Sennrich et al., 2016; Radford et al., 2019), from
// the files vocab.json and merges.txt that every distribution of GPT-2 has. Decoding is exact: any
// bytes come back as they were.
//
// A text is cut into words first (a space belongs to the word behind it). The bytes of a word are
// tokens, and the pair of neighbours that stands first in merges.txt becomes one token, until there
// is none; O(n log n) in the length of a word.

#include <array>
#include <string>
#include <unordered_map>

#include "paceline/files/text/tokenizer.h"

namespace paceline::text {

class BpeTokenizer : public Tokenizer {
 public:
  // Error(kCorrupt) with file and line when one is damaged, or when they do not belong together.
  static BpeTokenizer read(const std::string& vocabulary_file, const std::string& merges_file);

  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
  std::int32_t vocabulary_size() const override { return static_cast<std::int32_t>(names_.size()); }
  std::optional<Token> find(std::string_view name) const override;

 private:
  struct Merge {
    std::size_t rank;
    Token token;
  };

  void read_vocabulary(const std::string& file);
  void read_merges(const std::string& file);
  void encode_word(std::string_view word, std::vector<Token>& tokens) const;

  std::vector<std::string> names_;  // [token], in the letters of the file
  std::vector<std::string> bytes_;  // [token]
  std::unordered_map<std::string, Token> tokens_;
  std::array<Token, 256> byte_tokens_{};
  std::unordered_map<std::uint64_t, Merge> merges_;  // of two tokens, the left one in the high half
};

// The words that GPT-2 cuts a text into, in order; together they are the text.
std::vector<std::string_view> split_for_gpt2(std::string_view text);

}  // namespace paceline::text
