#pragma once

// GPT-2 (Radford et al., 2019): a language model that predicts the next token, with its loss, its
// cost, and the generation of text. Its parameters have GPT-2's names (wte, wpe, h.0.ln_1, ...,
// ln_f); the last layer uses the embedding's weight. load_hugging_face() (hugging_face.h) reads the
// published weights.
//
// Options beyond GPT-2: rotary positions instead of learned ones, and fewer heads of keys and
// values. The model does not depend on other ranks and supports clone().

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layers.h"

namespace paceline::models {

struct KeyValues;
struct TransformerBlockOptions;
class TransformerBlocksImpl;

// The defaults are those of GPT-2 with 124 million parameters.
struct GptOptions {
  std::int64_t vocabulary = 50257;
  std::int64_t context = 1024;  // the most tokens of a sequence
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t key_value_heads = 0;  // 0: equal to `heads`
  std::int64_t feed_forward = 0;     // 0: 4 x width
  double rotary_base = 0;            // 0: learned positions
  double dropout = 0.1;
};

// The keys and values of the earlier tokens of N sequences, kept for generation; made by
// Gpt::make_past().
class KeyValueCache {
 public:
  ~KeyValueCache();
  KeyValueCache(KeyValueCache&&) noexcept;
  KeyValueCache& operator=(KeyValueCache&&) noexcept;

  // The number of tokens of each sequence so far.
  std::int64_t count() const { return count_; }

 private:
  friend class GptImpl;
  explicit KeyValueCache(std::vector<KeyValues> layers);

  std::unique_ptr<std::vector<KeyValues>> layers_;
  std::int64_t count_ = 0;
};

class GptImpl : public torch::nn::Cloneable<GptImpl> {
 public:
  using Options = GptOptions;

  // Error(kInvalid) when a size is not positive or two sizes do not fit together.
  explicit GptImpl(const GptOptions& options = {}, const Layers& layers = {});
  void reset() override;

  // Tokens [N, T], integers from 0 -> logits [N, T, vocabulary]. With `past`, the tokens follow the
  // tokens in `past` and are added to it. Error(kInvalid) for more than `context` tokens in all.
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* past = nullptr);

  // Error(kInvalid) unless all ranks that share the layers describe the same `next_call`.
  void require_same(const std::string& next_call) const;

  // Makes an empty cache with room for `tokens` tokens of each sequence.
  KeyValueCache make_past(std::int64_t sequences, std::int64_t tokens) const;

  const GptOptions& options() const { return options_; }

 protected:
  // The parts that make up stages (transformer_stage.h). embed(): tokens -> states. run_blocks():
  // states -> states after the blocks. logits_of(): states -> logits.
  std::vector<at::Tensor> embed(const std::vector<at::Tensor>& inputs);
  at::Tensor run_blocks(const std::vector<at::Tensor>& states);
  at::Tensor logits_of(const at::Tensor& states);
  at::Tensor tied_weight() const;
  void share_tied_weight(const GptImpl& other);  // takes the weight of `other`
  // Drops the layers of all stages except the stage with these blocks.
  void keep(BlockRange range);

 private:
  TransformerBlockOptions block_options() const;
  at::Tensor embed_from(const at::Tensor& tokens, std::int64_t position);

  GptOptions options_;
  Layers layers_;
  torch::nn::AnyModule wte_, ln_f_;
  torch::nn::Embedding wpe_{nullptr};
  std::shared_ptr<TransformerBlocksImpl> h_;
};
TORCH_MODULE(Gpt);

inline namespace internal {

// The floating-point operations of a forward and a backward pass for each token of a sequence. In
// the forward pass, each weight of a matrix product and each element of attention's two products
// costs two operations; the backward pass costs twice as many (Chowdhery et al., PaLM, 2022,
// appendix B).
double operations_per_token(const GptOptions& options);

}  // namespace internal

// The cross-entropy between `logits` [N, T, vocabulary] and the next tokens [N, T]: the mean over
// all positions.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& next_tokens);

struct GenerateOptions {
  std::int64_t tokens = 100;        // the most tokens to generate
  double temperature = 1;           // divides the logits; 0: always the most likely token
  std::int64_t top_k = 0;           // draws from this many of the most likely tokens; 0: from all
  std::optional<std::int64_t> end;  // the token that ends a sequence
  std::uint64_t seed = 0;
};

// Generates text: one token after another, each drawn from the model's prediction. Keys and values
// of earlier tokens are kept, so a new token costs the model one position. Returns `prompt` [N, T]
// followed by the new tokens, [N, T + tokens], or fewer when every sequence has ended; a sequence
// that ended earlier is filled up with the end token. During the call the model is in evaluation
// mode; afterwards its own mode is restored. The same model, prompt and options give the same
// tokens; they are drawn on the CPU. The prompt is on the model's device, as is the result.
// Error(kInvalid) when the prompt is empty, when prompt and new tokens together exceed the context,
// or when an option is out of range; on every rank when ranks that share the model differ in prompt
// or options, or when the model returns only a part of the logits (TensorParallelOptions,
// gather_logits).
at::Tensor generate(Gpt& model, const at::Tensor& prompt, const GenerateOptions& options = {});

}  // namespace paceline::models
