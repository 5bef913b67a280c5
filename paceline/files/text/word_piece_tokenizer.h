#pragma once

// BERT's tokenizer: words are cut at white space and punctuation, and a word into the longest
// pieces, from its beginning, that the vocabulary has (WordPiece; Schuster and Nakajima, 2012; as
// in Devlin et al., 2018). A piece that continues a word is written with "##" before it. A word
// with a part that no piece fits is [UNK].
//
// encode() adds neither [CLS] nor [SEP]; find() has their tokens. Decoding gives words with single
// spaces between them, not the text as it was.

#include <string>
#include <unordered_map>

#include "paceline/files/text/tokenizer.h"

namespace paceline::text {

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
