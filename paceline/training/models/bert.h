#pragma once

// BERT (Devlin et al., 2018): a model that predicts masked tokens; each token attends to the tokens
// on both sides. It has the same kind of blocks as GPT; the last layer uses the embedding's weight.
// load_hugging_face() (hugging_face.h) reads the weights of BertForMaskedLM.
//
// The model does not depend on other ranks and supports clone().

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layers.h"

namespace paceline::models {

struct TransformerBlockOptions;
class TransformerBlocksImpl;

// The defaults are those of BERT-base, uncased, with 110 million parameters.
struct BertOptions {
  std::int64_t vocabulary = 30522;
  std::int64_t context = 512;  // the most tokens of a sequence
  std::int64_t segments = 2;
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t feed_forward = 3072;
  double dropout = 0.1;
};

class BertImpl : public torch::nn::Cloneable<BertImpl> {
 public:
  using Options = BertOptions;

  // Error(kInvalid) when a size is not positive or two sizes do not fit together.
  explicit BertImpl(const BertOptions& options = {}, const Layers& layers = {});
  void reset() override;

  // Tokens [N, T] -> logits [N, T, vocabulary]. `segments` [N, T]: the number of the text to which
  // a token belongs; undefined: 0 for all tokens. `is_token` [N, T], booleans: false for the
  // padding after a sequence; undefined: no padding. Error(kInvalid) if T is larger than `context`.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& segments = {},
                     const at::Tensor& is_token = {});

  const BertOptions& options() const { return options_; }

 protected:
  // The parts that make up stages (transformer_stage.h). embed(): the inputs of forward(), of which
  // only the tokens are required -> states and, if given, `is_token`. run_blocks(): the results of
  // embed() -> the states after the blocks. logits_of(): states -> logits.
  std::vector<at::Tensor> embed(const std::vector<at::Tensor>& inputs);
  at::Tensor run_blocks(const std::vector<at::Tensor>& states);
  at::Tensor logits_of(const at::Tensor& states);
  at::Tensor tied_weight() const;
  void share_tied_weight(const BertImpl& other);  // takes the weight of `other`
  // Drops the layers of all stages except the stage with these blocks.
  void keep(BlockRange range);

 private:
  TransformerBlockOptions block_options() const;

  BertOptions options_;
  Layers layers_;
  torch::nn::AnyModule words_, embedding_norm_, head_, head_norm_;
  at::Tensor head_bias_;
  torch::nn::Embedding positions_{nullptr}, segments_{nullptr};
  std::shared_ptr<TransformerBlocksImpl> blocks_;
};
TORCH_MODULE(Bert);

}  // namespace paceline::models
