#pragma once

// Text for a language model, as tokens in a row: in memory, or in a file that is mapped, so that it
// may be larger than memory and all ranks of a host read the same pages.
//
//   data::write_tokens("text.bin", tokenizer.encode(text));
//   const auto dataset = std::make_shared<data::TokenDataset>(
//       "text.bin", data::map_tokens("text.bin"), /*context=*/256);

#include <cstdint>
#include <span>
#include <string>

#include "paceline/training/data/dataset.h"

namespace paceline::data {

// How a file has its tokens, little-endian and without a header: k16 is what nanoGPT and others
// write for vocabularies of up to 65,536.
enum class TokenWidth : std::uint8_t { k16, k32 };

// Replaces the file. Error(kInvalid) for a token that the width has no room for, kSystem when the
// operating system refuses.
void write_tokens(const std::string& path, std::span<const std::int32_t> tokens,
                  TokenWidth width = TokenWidth::k16);

// The file's tokens, read as they are used: a row of int16 or int32, the former with the bits of
// unsigned numbers. The file must not change meanwhile. Error(kCorrupt) when it is missing, empty,
// no regular file, or no whole number of tokens.
at::Tensor map_tokens(const std::string& path, TokenWidth width = TokenWidth::k16);

// Sample i are `context` tokens from i x context on, and the tokens that come next, one further:
// two rows of int64. What is left at the end, shorter than that, is not used.
class TokenDataset : public Dataset {
 public:
  // `tokens`: a row of int16 (as unsigned numbers), int32 or int64. Error(kInvalid) unless it has
  // more than `context` of them.
  TokenDataset(std::string name, at::Tensor tokens, std::int64_t context);

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
