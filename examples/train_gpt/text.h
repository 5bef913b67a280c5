#pragma once

// The text that train_gpt trains on and evaluates with, as tokens, and back.

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/files/text/tokenizer.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/data/token_dataset.h"

#include "examples/train_gpt/options.h"

namespace train_gpt {

struct Text {
  std::shared_ptr<const paceline::text::Tokenizer> tokenizer;
  // Of the model: the tokenizer's and a few that never come, so that ranks can divide it.
  std::int64_t vocabulary = 0;
  std::shared_ptr<const paceline::data::TokenDataset> training, testing;
};

// Error names the file and what is wrong with it.
Text load_text(const Options& options);

// This rank's share among the replicas: of each epoch for training, of all that is held out for
// testing. `seed` decides on the order.
std::unique_ptr<paceline::data::DataLoader> make_training_loader(
    const Options& options, const Text& text, std::uint64_t seed,
    const paceline::ProcessGroup& replicas);
std::unique_ptr<paceline::data::DataLoader> make_test_loader(
    const Options& options, const Text& text, const paceline::ProcessGroup& replicas);

// The prompt of a sample, [1, T]. Error(kInvalid) when it fills the context.
at::Tensor encode_prompt(const Options& options, const Text& text);
// Tokens [1, T] as text for a terminal: what cannot be printed is a dot.
std::string decode_sample(const Text& text, const at::Tensor& tokens);

}  // namespace train_gpt
