#pragma once

// GPT-2 (Radford et al., 2019): a language model that predicts the next token. Its parameters have
// GPT-2's names (wte, wpe, h.0.ln_1, ..., ln_f), the last layer's weight is that of the embedding.
// load_hugging_face() (hugging_face.h) reads the weights that everybody has.
//
// Options beyond GPT-2: rotary positions in the place of learned ones, fewer heads of keys and
// values. Blind to ranks. It can be cloned.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"
#include "paceline/training/models/transformer.h"

namespace paceline::models {

// The defaults are GPT-2's with 124 million parameters.
struct GptOptions {
  std::int64_t vocabulary = 50257;
  std::int64_t context = 1024;  // tokens that the model sees at most
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t key_value_heads = 0;  // 0: as many as heads
  std::int64_t feed_forward = 0;     // 0: 4 x width
  double rotary_base = 0;            // 0: learned positions
  double dropout = 0.1;
};

// What a model has seen of N sequences; Gpt::make_past() makes it.
struct GptPast {
  std::vector<KeyValues> layers;
  std::int64_t count = 0;  // tokens
};

class GptImpl : public torch::nn::Cloneable<GptImpl> {
 public:
  using Options = GptOptions;

  // Error(kInvalid) when a size is not positive or does not fit another (attention.h).
  explicit GptImpl(const GptOptions& options = {}, const Layers& layers = {});
  void reset() override;

  // Tokens [N, T], integers from 0 -> logits [N, T, vocabulary]. With `past` the tokens follow
  // those that it has, and are added to it. Error(kInvalid) for more tokens than the context.
  at::Tensor forward(const at::Tensor& tokens, GptPast* past = nullptr);

  // Error(kInvalid) where ranks that share the layers describe what they do differently.
  void require_same(const std::string& doing) const;

  // Empty, with room for so many tokens.
  GptPast make_past(std::int64_t sequences, std::int64_t tokens) const;

  const GptOptions& options() const { return options_; }

 protected:
  // What stages are made of (stage.h): tokens -> states; states -> states behind the blocks;
  // states -> logits.
  std::vector<at::Tensor> embed(const std::vector<at::Tensor>& inputs);
  at::Tensor run_blocks(const std::vector<at::Tensor>& states) { return h_->forward(states[0]); }
  at::Tensor logits_of(const at::Tensor& states);
  at::Tensor tied_weight() const { return weight_of(wte_); }
  void share_tied_weight(const GptImpl& other);  // takes the other's
  // Drops what belongs to other stages than that of these blocks.
  void keep(BlockRange range);

 private:
  TransformerBlockOptions block_options() const;
  at::Tensor embed_from(const at::Tensor& tokens, std::int64_t position);

  GptOptions options_;
  Layers layers_;
  torch::nn::AnyModule wte_, ln_f_;
  torch::nn::Embedding wpe_{nullptr};
  TransformerBlocks h_{nullptr};
};
TORCH_MODULE(Gpt);

// Floating-point operations of a forward and a backward pass, for each of a sequence's tokens: two
// for each weight of a matrix product and each element of attention's two products, forwards, and
// twice as many backwards (Chowdhery et al., PaLM, 2022, appendix B).
double operations_per_token(const GptOptions& options);

// The mean over all positions of the cross-entropy of `logits` [N, T, vocabulary] with the tokens
// that come next, [N, T].
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& next_tokens);

// Text from a language model: one token after the other, each drawn from what the model predicts.
// Keys and values of the tokens so far are kept, so a token costs one step of the model.

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
