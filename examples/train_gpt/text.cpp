#include "examples/train_gpt/text.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include <torch/torch.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/text/tokenizer.h"
#include "paceline/files/text/unicode.h"
#include "paceline/training/data/dataset_files.h"

namespace train_gpt {
namespace {

namespace data = paceline::data;
using paceline::check;
using paceline::text::Token;

constexpr std::int64_t kHeldOut = 10;           // one token in this many is held out for testing
constexpr std::int64_t kVocabularyStep = 64;    // the model's vocabulary is a multiple of this
constexpr std::int64_t kLogits = 16'000'000;    // the most logits in a test batch, to limit memory
constexpr std::int64_t kLargestTestBatch = 32;  // sequences
constexpr std::size_t kReadBytes = 1 << 20;     // bytes of a file that are read at a time

std::shared_ptr<const paceline::text::Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<paceline::text::ByteTokenizer>();
  check(std::filesystem::is_directory(name),
        "--tokenizer {}: neither 'bytes' nor a folder with GPT-2's vocab.json and merges.txt",
        name);
  return std::make_shared<paceline::text::BpeTokenizer>(
      paceline::text::BpeTokenizer::read(name + "/vocab.json", name + "/merges.txt"));
}

std::string read_text(const std::string& path) {
  data::GzipFile file(path);
  std::string text;
  for (std::size_t length = 0;;) {
    text.resize(length + kReadBytes);
    const auto room = std::as_writable_bytes(std::span(text).subspan(length));
    const std::size_t got = file.read(room);
    length += got;
    if (got < room.size()) {
      text.resize(length);
      text.erase(0, paceline::text_start(std::as_bytes(std::span(text)), path));
      return text;
    }
  }
}

at::Tensor as_tensor(const std::vector<Token>& tokens) {
  return torch::tensor(at::ArrayRef<Token>(tokens), torch::kInt);
}

}  // namespace

Text load_text(const Options& options) {
  check(options.text != kDefaultText || std::filesystem::exists(options.text),
        "{} was not found; install Debian's package jargon-text (scripts/install_packages data), "
        "or name a text with --text",
        options.text);
  Text all{.tokenizer = open_tokenizer(options.tokenizer)};
  const std::int64_t known = all.tokenizer->vocabulary_size();
  all.vocabulary = (known + kVocabularyStep - 1) / kVocabularyStep * kVocabularyStep;

  const at::Tensor tokens = as_tensor(all.tokenizer->encode(read_text(options.text)));
  const std::int64_t count = tokens.numel(), shortest = options.context + 1;
  check(count >= 2 * shortest,
        "{}: the text has {} tokens; with a context of {}, training and the part that is held out "
        "need at least {}; use a longer text or a smaller --context",
        options.text, count, options.context, 2 * shortest);
  const std::int64_t held_out = std::max(count / kHeldOut, shortest);
  const auto part = [&](std::int64_t begin, std::int64_t length) {
    return std::make_shared<data::TokenDataset>(options.text, tokens.narrow(0, begin, length),
                                                options.context);
  };
  all.training = part(0, count - held_out);
  all.testing = part(count - held_out, held_out);
  return all;
}

std::unique_ptr<data::DataLoader> make_training_loader(const Options& options, const Text& text,
                                                       std::uint64_t seed,
                                                       const paceline::ProcessGroup& replicas) {
  const data::DistributedSampler sampler(text.training->size(), replicas.world_size(),
                                         replicas.rank(), {.seed = seed});
  return std::make_unique<data::DataLoader>(text.training, sampler, options.training.loading);
}

std::unique_ptr<data::DataLoader> make_test_loader(const Options& options, const Text& text,
                                                   const paceline::ProcessGroup& replicas) {
  const std::int64_t fitting = kLogits / (options.context * text.vocabulary);
  return std::make_unique<data::DataLoader>(
      text.testing,
      data::evaluation_indices(text.testing->size(), replicas.world_size(), replicas.rank()),
      data::DataLoaderOptions{.batch_size = std::clamp<std::int64_t>(fitting, 1, kLargestTestBatch),
                              .num_threads = options.training.loading.num_threads,
                              .device = options.training.loading.device});
}

at::Tensor encode_prompt(const Options& options, const Text& text) {
  const at::Tensor tokens = as_tensor(text.tokenizer->encode(options.prompt));
  check(tokens.numel() < options.context, "--prompt: its {} tokens fill the context of {}",
        tokens.numel(), options.context);
  return tokens.to(torch::kLong).unsqueeze(0);
}

std::string decode_sample(const Text& text, const at::Tensor& tokens) {
  std::vector<Token> known;
  for (std::int64_t i = 0; i < tokens.size(1); ++i) {
    const auto token = tokens[0][i].item<std::int64_t>();
    if (token < text.tokenizer->vocabulary_size()) known.push_back(static_cast<Token>(token));
  }
  const std::string decoded = text.tokenizer->decode(known);
  std::string printable;
  for (std::size_t at = 0; at < decoded.size();) {
    const auto character = paceline::text::first_character(std::string_view(decoded).substr(at));
    const bool is_seen = character.code == '\n' || character.code == '\t' ||
                         (character.code != paceline::text::kNoCharacter &&
                          !paceline::text::is_control(character.code));
    printable += is_seen ? decoded.substr(at, character.bytes) : ".";
    at += character.bytes;
  }
  return printable;
}

}  // namespace train_gpt
