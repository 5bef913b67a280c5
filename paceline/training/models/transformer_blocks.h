#pragma once

// The blocks of a transformer, one after the other, or those of them that a stage of a pipeline
// keeps. A block's name is its number in the whole model.

#include <cstdint>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"
#include "paceline/training/models/transformer_block.h"

namespace paceline::models {

// Blocks [begin, end).
struct BlockRange {
  std::int64_t begin = 0, end = 0;
};

class TransformerBlocksImpl : public torch::nn::Cloneable<TransformerBlocksImpl> {
 public:
  // `count` blocks that are alike.
  TransformerBlocksImpl(const TransformerBlockOptions& options, const Layers& layers,
                        std::int64_t count);
  void reset() override;

  // Drops all blocks but these. Requires: there are such blocks.
  void keep(BlockRange range);

  // [N, T, width] -> [N, T, width]; `bias` is the attention's. `past` has the keys and values of
  // each block; null: there are no positions before these.
  at::Tensor forward(at::Tensor states, const at::Tensor& bias = {},
                     std::vector<KeyValues>* past = nullptr);

  // Room for so many positions of N sequences, in each block.
  std::vector<KeyValues> make_past(std::int64_t sequences, std::int64_t positions) const;

 private:
  TransformerBlockOptions options_;
  Layers layers_;
  BlockRange range_;
  std::vector<TransformerBlock> blocks_;
};
TORCH_MODULE(TransformerBlocks);

}  // namespace paceline::models
