#pragma once

// Converts text to tokens, which language models read and write, and back.
//
//   const auto tokenizer = BpeTokenizer::read("vocab.json", "merges.txt");
//   const std::vector<Token> tokens = tokenizer.encode("Hello there");
//
// Thread safety: tokenizers are constant; any thread may use them.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace paceline::text {

using Token = std::int32_t;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Encodes any bytes; bytes that are not UTF-8 are not an error.
  virtual std::vector<Token> encode(std::string_view text) const = 0;
  // Throws Error(kInvalid) for a token outside of the vocabulary.
  virtual std::string decode(std::span<const Token> tokens) const = 0;

  // Tokens are 0 to vocabulary_size() - 1.
  virtual std::int32_t vocabulary_size() const = 0;
  // The token with this name in the vocabulary's file, including tokens that no text encodes to,
  // such as <|endoftext|> or [MASK].
  virtual std::optional<Token> find(std::string_view name) const = 0;
};

// Uses bytes as tokens, 0 to 255: a vocabulary that needs no file.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
  std::int32_t vocabulary_size() const override { return 256; }
  // Finds only names of one byte.
  std::optional<Token> find(std::string_view name) const override;
};

// GPT-2's tokenizer: byte-level pair encoding (Sennrich et al., 2016; Radford et al., 2019), from
// the files vocab.json and merges.txt that every distribution of GPT-2 has. Decoding restores any
// bytes exactly.
//
// A text is first cut into words (a space belongs to the word after it). Each byte of a word is a
// token at first; then, again and again, the pair of neighbours that comes first in merges.txt is
// merged into one token, until no pair is left. That takes O(n log n) in the length of a word.
class BpeTokenizer : public Tokenizer {
 public:
  // Throws Error(kCorrupt), which names the file, and in `merges_file` also the line, when a file
  // is damaged or when the two files do not belong together.
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

  std::vector<std::string> names_;  // [token], as the vocabulary's file spells it
  std::vector<std::string> bytes_;  // [token]
  std::unordered_map<std::string, Token> tokens_;
  std::array<Token, 256> byte_tokens_{};
  std::unordered_map<std::uint64_t, Merge>
      merges_;  // key: two tokens, the left one in the high 32 bits
};

// BERT's tokenizer. A text is cut into words at white space, punctuation and Chinese characters,
// and each word, from its beginning, into the longest pieces that the vocabulary has (WordPiece;
// Schuster and Nakajima, 2012; Devlin et al., 2018). Pieces that continue a word begin with "##". A
// word of over 100 characters, or with a part that matches no piece, becomes [UNK].
//
// encode() adds neither [CLS] nor [SEP]; find() returns their tokens. Decoding gives words
// separated by single spaces, not the original text.
class WordPieceTokenizer : public Tokenizer {
 public:
  // Reads a file with one token per line, such as BERT's vocab.txt. With `is_lower_case`, letters
  // become lower case and lose their accents, as "uncased" models require. Error(kCorrupt) names
  // the file when [UNK] is missing, and also the line when a token appears twice.
  static WordPieceTokenizer read(const std::string& vocabulary_file, bool is_lower_case = true);

  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
  std::int32_t vocabulary_size() const override { return static_cast<std::int32_t>(names_.size()); }
  std::optional<Token> find(std::string_view name) const override;

 private:
  void encode_word(std::string_view word, std::vector<Token>& tokens) const;

  std::vector<std::string> names_;  // [token]
  std::unordered_map<std::string, Token> tokens_;
  std::size_t longest_name_ = 0;
  Token unknown_ = 0;
  bool is_lower_case_ = true;
};

}  // namespace paceline::text
