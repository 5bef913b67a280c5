#pragma once

// The text that train_gpt trains on and evaluates with, as tokens; also turns tokens into text.

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
  // The vocabulary of the model: the tokenizer's, and a few tokens that never occur, so that ranks
  // can divide it.
  std::int64_t vocabulary = 0;
  std::shared_ptr<const paceline::data::TokenDataset> training, testing;
};

// Throws an Error that names the file and its defect.
Text load_text(const Options& options);

// Loaders for this replica's share of the training tokens in each epoch, and of the tokens that are
// held out for testing. `seed` decides the order of training.
std::unique_ptr<paceline::data::DataLoader> make_training_loader(
    const Options& options, const Text& text, std::uint64_t seed,
    const paceline::ProcessGroup& replicas);
std::unique_ptr<paceline::data::DataLoader> make_test_loader(
    const Options& options, const Text& text, const paceline::ProcessGroup& replicas);

// The prompt of a sample, [1, T]. Throws Error(kInvalid) if it fills the context.
at::Tensor encode_prompt(const Options& options, const Text& text);
// Tokens [1, T] as text for a terminal. Characters that cannot be printed become dots.
std::string decode_sample(const Text& text, const at::Tensor& tokens);

}  // namespace train_gpt
