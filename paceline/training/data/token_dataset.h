#pragma once

// Text for a language model as a row of tokens: in memory, or in a mapped file, which may be larger
// than memory and whose pages all ranks of a host share.
//
//   data::TokenDataset::write("text.bin", tokenizer.encode(text));
//   const auto dataset = std::make_shared<data::TokenDataset>(
//       "text.bin", data::TokenDataset::map("text.bin"), /*context=*/256);

#include <cstdint>
#include <span>
#include <string>

#include "paceline/training/data/dataset.h"

namespace paceline::data {

// A text as samples of `context` tokens. Sample i is two rows of int64: the `context` tokens that
// begin at token i x context, and the `context` tokens that begin one token later. Tokens at the
// end that do not fill a sample are not used.
class TokenDataset : public Dataset {
 public:
  // `tokens`: a row of int16 (as unsigned numbers), int32 or int64. Error(kInvalid) unless it has
  // more than `context` tokens.
  TokenDataset(std::string name, at::Tensor tokens, std::int64_t context);

  // A file of tokens is little-endian and has no header. In both functions, `type` is the type of
  // its tokens: at::kInt, or at::kShort with the bits of unsigned numbers, the format of nanoGPT
  // and other programs for up to 65,536 different tokens. Error(kInvalid) for another type.
  //
  // Writes or replaces the file. Error(kInvalid) for a token that does not fit the type; kSystem if
  // a system call fails.
  static void write(const std::string& path, std::span<const std::int32_t> tokens,
                    at::ScalarType type = at::kShort);
  // Maps the file's tokens as a row of this type; pages are read when they are used. The file must
  // not change while the tensor exists. Error(kCorrupt) when the file is missing, empty, not a
  // regular file, or not a whole number of tokens.
  static at::Tensor map(const std::string& path, at::ScalarType type = at::kShort);

  std::string name() const override { return name_; }
  std::int64_t size() const override { return (tokens_.numel() - 1) / context_; }
  std::int64_t num_tokens() const { return tokens_.numel(); }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override;

 private:
  const std::string name_;
  const at::Tensor tokens_;
  const std::int64_t context_;
};

}  // namespace paceline::data
