#pragma once

// Multi-head attention (Vaswani et al., 2017) of a sequence to itself, as GPT and BERT have it: one
// linear layer makes queries, keys and values, another one joins the heads. Fewer heads of keys and
// values than of queries make it grouped-query attention (Ainslie et al., 2023). Positions may be
// rotary (Su et al., 2021), in the convention of Llama: the halves of a head are turned.
//
// The memory of scores grows with the square of the sequence's length.

#include <cstdint>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"

namespace paceline::models {

struct AttentionOptions {
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t key_value_heads = 0;  // divides `heads`; 0: as many
  bool is_causal = true;             // a position sees itself and those before it
  double rotary_base = 0;            // usually 10,000; 0: the attention knows no positions
  double dropout = 0.1;              // of the weights and of the result
};

// Keys and values of the positions that a model has seen, for generation: room for a number of
// positions, filled from the first on.
struct KeyValues {
  at::Tensor keys, values;  // [N, key_value_heads, room, width of a head]
  std::int64_t count = 0;
};

class AttentionImpl : public torch::nn::Cloneable<AttentionImpl> {
 public:
  // Error(kInvalid) unless the heads divide the width, and likewise those of keys and values the
  // heads; rotary positions want an even width of a head.
  explicit AttentionImpl(const AttentionOptions& options = {}, const Layers& layers = {});
  void reset() override;

  // [N, T, width] -> [N, T, width]. `bias`: added to the scores, of a shape that broadcasts to
  // [N, heads, T, T], the same for all heads where they are divided; undefined: nothing. `past`:
  // the positions before these, to which these are added; null: there are none. Error(kInvalid)
  // when it has no room for them.
  at::Tensor forward(const at::Tensor& states, const at::Tensor& bias = {},
                     KeyValues* past = nullptr);

  // Room for the keys and values of so many positions of N sequences.
  KeyValues make_past(std::int64_t sequences, std::int64_t positions) const;

 private:
  std::int64_t head_width() const { return options_.width / options_.heads; }
  std::int64_t key_value_heads() const {
    return options_.key_value_heads > 0 ? options_.key_value_heads : options_.heads;
  }
  // Heads of queries, and of keys as of values, in so many features of the projection: the layers
  // may make fewer than all (InnerFeatures).
  struct Heads {
    std::int64_t queries, keys;
  };
  Heads heads_in(std::int64_t features) const;
  at::Tensor turned(const at::Tensor& heads, std::int64_t first_position) const;
  at::Tensor remember(const at::Tensor& now, at::Tensor& all, std::int64_t count) const;

  AttentionOptions options_;
  Layers layers_;
  torch::nn::AnyModule c_attn_, c_proj_;
};
TORCH_MODULE(Attention);

}  // namespace paceline::models
