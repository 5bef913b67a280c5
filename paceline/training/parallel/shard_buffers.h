#pragma once

// A module's buffers (BatchNorm's statistics) in a step of logical shards: the forward pass of
// every shard begins with those that the step began with, and those that the first one left count
// at its end. So they are shard 0's on rank 0, whose buffers all ranks get, for every number of
// ranks, and also where parts of the model run again in the backward pass (checkpoint()).
//
// A step's forward passes are one for each shard.
//
// Thread safety: none.

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

class ShardBuffers {
 public:
  explicit ShardBuffers(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {}

  // Around the forward pass of this rank's shard `index`, and after the last backward pass.
  void begin_forward(std::int64_t index);
  void end_forward(std::int64_t index);
  void end_step();

 private:
  std::vector<at::Tensor> copy() const;
  void restore(const std::vector<at::Tensor>& values);

  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> at_start_, after_first_;
  bool is_unfinished_ = false;  // a step has begun and not ended
};

}  // namespace paceline
