#pragma once

// Text from a language model: one token after the other, each drawn from what the model predicts.
// Keys and values of the tokens so far are kept, so a token costs one step of the model.

#include <cstdint>
#include <optional>

#include "paceline/training/models/gpt.h"

namespace paceline::models {

struct GenerateOptions {
  std::int64_t tokens = 100;        // to make, at most
  double temperature = 1;           // logits are divided by it; 0: the likeliest token, always
  std::int64_t top_k = 0;           // only so many of the likeliest are drawn from; 0: all
  std::optional<std::int64_t> end;  // sequences end with this token
  std::uint64_t seed = 0;
};

// The tokens of `prompt` [N, T] and those that follow, [N, T + tokens], or fewer when every
// sequence has ended; a sequence that has ended goes on with its end token. The model is in
// evaluation mode meanwhile, and then in the one it was in. The same model, prompt and options give
// the same tokens. Error(kInvalid) when the prompt is empty, does not fit the context with what is
// wanted, or an option is out of range; on every rank when ranks that share the model differ in
// prompt or options, or when the model returns a part of the logits (TensorParallelOptions,
// gather_logits).
at::Tensor generate(Gpt& model, const at::Tensor& prompt, const GenerateOptions& options = {});

}  // namespace paceline::models
