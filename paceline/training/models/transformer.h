#pragma once

// The parts of a transformer that GPT and BERT share: attention, a block, the sequence of blocks,
// and their initial values.
//
// Thread safety: same as a torch::nn::Module.

#include <cstdint>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layers.h"

namespace paceline::models {

// Multi-head self-attention (Vaswani et al., 2017): one linear layer computes queries, keys and
// values, another one combines the heads. With fewer heads of keys and values than of queries it is
// grouped-query attention (Ainslie et al., 2023). Positions may be rotary (Su et al., 2021), in
// Llama's convention: each rotated pair has one element from each half of a head. The scores take
// memory that grows with the square of the sequence's length.
struct AttentionOptions {
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t key_value_heads = 0;  // divides `heads`; 0: equal to `heads`
  bool is_causal = true;             // a position attends to itself and to the positions before it
  double rotary_base = 0;            // usually 10,000; 0: no rotary positions
  double dropout = 0.1;              // applied to the attention weights and to the result
};

// Keys and values of the earlier positions of each sequence, kept for generation: tensors with room
// for a number of positions, filled from the first position on.
struct KeyValues {
  at::Tensor keys, values;  // [N, key_value_heads, room, width of a head]
  std::int64_t count = 0;
};

class AttentionImpl : public torch::nn::Cloneable<AttentionImpl> {
 public:
  // Error(kInvalid) unless `heads` divides `width` and `key_value_heads` divides `heads`; also for
  // rotary positions with heads of an odd width.
  explicit AttentionImpl(const AttentionOptions& options = {}, const Layers& layers = {});
  void reset() override;

  // [N, T, width] -> [N, T, width]. `bias` is added to the scores; its shape broadcasts to [N,
  // heads, T, T], and if the heads are divided among ranks it must be the same for all heads;
  // undefined: no bias. `past` has the earlier positions, and the new positions are added to it;
  // null: no earlier positions. Error(kInvalid) when `past` has no room for the new positions.
  at::Tensor forward(const at::Tensor& states, const at::Tensor& bias = {},
                     KeyValues* past = nullptr);

  // Makes room for the keys and values of `positions` positions of each sequence.
  KeyValues make_past(std::int64_t sequences, std::int64_t positions) const;

 private:
  std::int64_t head_width() const { return options_.width / options_.heads; }
  std::int64_t key_value_heads() const {
    return options_.key_value_heads > 0 ? options_.key_value_heads : options_.heads;
  }
  // The numbers of heads in `features` features of the projection: heads of queries, and heads of
  // keys (as many as of values). Divided layers compute only a part of the heads (InnerFeatures).
  struct Heads {
    std::int64_t queries, keys;
  };
  Heads heads_in(std::int64_t features) const;
  at::Tensor apply_rotary(const at::Tensor& heads, std::int64_t first_position) const;
  at::Tensor remember(const at::Tensor& now, at::Tensor& all, std::int64_t count) const;

  AttentionOptions options_;
  Layers layers_;
  torch::nn::AnyModule c_attn_, c_proj_;
};
TORCH_MODULE(Attention);

// One layer of a transformer: attention, then two linear layers with GELU between them; a residual
// connection goes around the attention and around the two linear layers. GPT-2's layer has the
// norms before the attention and the linear layers (norm_first), BERT's layer has them after.
struct TransformerBlockOptions {
  AttentionOptions attention;
  std::int64_t feed_forward = 3072;  // width between the two linear layers
  bool norm_first = true;
  double norm_epsilon = 1e-5;
  bool exact_gelu = false;  // GELU computed with erf, not approximated by tanh
};

class TransformerBlockImpl : public torch::nn::Cloneable<TransformerBlockImpl> {
 public:
  explicit TransformerBlockImpl(const TransformerBlockOptions& options = {},
                                const Layers& layers = {});
  void reset() override;

  // [N, T, width] -> [N, T, width]; `bias` and `past` are passed to the attention.
  at::Tensor forward(const at::Tensor& states, const at::Tensor& bias = {},
                     KeyValues* past = nullptr);

  KeyValues make_past(std::int64_t sequences, std::int64_t positions) const {
    return attn_->make_past(sequences, positions);
  }

 private:
  at::Tensor feed_forward(const at::Tensor& states);

  TransformerBlockOptions options_;
  Layers layers_;
  torch::nn::AnyModule ln_1_, ln_2_, c_fc_, c_proj_;
  Attention attn_{nullptr};
};
TORCH_MODULE(TransformerBlock);

// Sets GPT-2's and BERT's initial values. Weights are normal with a standard deviation of 0.02,
// divided by the square root of `num_branches` for the weights that end a residual branch (c_proj);
// biases are 0; norms keep their values. A divided layer (divided_layer.h) gets its part of the
// whole layer's values.
void init_transformer(torch::nn::Module& module, std::int64_t num_branches);

// The blocks of a transformer, in order: all of them, or the blocks of one pipeline stage. A
// block's name is its number in the whole model.
class TransformerBlocksImpl : public torch::nn::Cloneable<TransformerBlocksImpl> {
 public:
  // Makes `count` equal blocks.
  TransformerBlocksImpl(const TransformerBlockOptions& options, const Layers& layers,
                        std::int64_t count);
  void reset() override;

  // Drops all blocks outside of `range`. Requires: the blocks of `range` exist.
  void keep(BlockRange range);

  // [N, T, width] -> [N, T, width]; `bias` is passed to each attention. `past` has the keys and
  // values of each block; null: no earlier positions.
  at::Tensor forward(at::Tensor states, const at::Tensor& bias = {},
                     std::vector<KeyValues>* past = nullptr);

  // Makes room for `positions` positions of each sequence, in each block.
  std::vector<KeyValues> make_past(std::int64_t sequences, std::int64_t positions) const;

 private:
  TransformerBlockOptions options_;
  Layers layers_;
  BlockRange range_;
  std::vector<TransformerBlock> blocks_;
};
TORCH_MODULE(TransformerBlocks);

}  // namespace paceline::models
