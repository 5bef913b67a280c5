#pragma once

// Text as tokens and back: what a language model reads and writes.
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

  // Takes any bytes; bytes that are not UTF-8 are not an error.
  virtual std::vector<Token> encode(std::string_view text) const = 0;
  // Error(kInvalid) for a token outside of the vocabulary.
  virtual std::string decode(std::span<const Token> tokens) const = 0;

  // Tokens are 0 to vocabulary_size() - 1.
  virtual std::int32_t vocabulary_size() const = 0;
  // The token that is written so in the vocabulary's file, also one that no text becomes, such as
  // <|endoftext|> or [MASK].
  virtual std::optional<Token> find(std::string_view name) const = 0;
};

// Bytes as tokens, 0 to 255: a vocabulary that needs no file.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
  std::int32_t vocabulary_size() const override { return 256; }
  // The token of a name of one byte.
  std::optional<Token> find(std::string_view name) const override;
};

// GPT-2's tokenizer: byte-level pair encoding (Sennrich et al., 2016; Radford et al., 2019), from
// the files vocab.json and merges.txt that every distribution of GPT-2 has. Decoding is exact: any
// bytes come back as they were.
//
// A text is cut into words first (a space belongs to the word behind it). The bytes of a word are
// tokens, and the pair of neighbours that stands first in merges.txt becomes one token, until there
// is none; O(n log n) in the length of a word.
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

// BERT's tokenizer: words are cut at white space and punctuation, and a word into the longest
// pieces, from its beginning, that the vocabulary has (WordPiece; Schuster and Nakajima, 2012; as
// in Devlin et al., 2018). A piece that continues a word is written with "##" before it. A word
// with a part that no piece fits is [UNK].
//
// encode() adds neither [CLS] nor [SEP]; find() has their tokens. Decoding gives words with single
// spaces between them, not the text as it was.
class WordPieceTokenizer : public Tokenizer {
 public:
  // A file with a token a line, as BERT's vocab.txt. `is_lower_case`: letters are made small and
  // lose their accents, as the "uncased" models want. Error(kCorrupt) with file and line when a
  // token is there twice or [UNK] is not.
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
