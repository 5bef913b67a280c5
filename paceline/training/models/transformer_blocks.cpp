#include "paceline/training/models/transformer_blocks.h"

#include <string>
#include <utility>

namespace paceline::models {

TransformerBlocksImpl::TransformerBlocksImpl(const TransformerBlockOptions& options,
                                             const Layers& layers, std::int64_t count)
    : options_(options), layers_(layers), range_{0, count} {
  TransformerBlocksImpl::reset();
}

void TransformerBlocksImpl::reset() {
  blocks_.clear();
  for (std::int64_t number = range_.begin; number < range_.end; ++number) {
    blocks_.push_back(register_module(std::to_string(number), TransformerBlock(options_, layers_)));
  }
}

void TransformerBlocksImpl::keep(BlockRange range) {
  std::vector<TransformerBlock> kept;
  for (std::int64_t number = range_.begin; number < range_.end; ++number) {
    if (number >= range.begin && number < range.end) {
      kept.push_back(blocks_[static_cast<std::size_t>(number - range_.begin)]);
    } else {
      unregister_module(std::to_string(number));
    }
  }
  range_ = range;
  blocks_ = std::move(kept);
}

at::Tensor TransformerBlocksImpl::forward(at::Tensor states, const at::Tensor& bias,
                                          std::vector<KeyValues>* past) {
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    states = blocks_[i]->forward(states, bias, past == nullptr ? nullptr : &(*past)[i]);
  return states;
}

std::vector<KeyValues> TransformerBlocksImpl::make_past(std::int64_t sequences,
                                                        std::int64_t positions) const {
  std::vector<KeyValues> past;
  for (const TransformerBlock& block : blocks_)
    past.push_back(block->make_past(sequences, positions));
  return past;
}

}  // namespace paceline::models
