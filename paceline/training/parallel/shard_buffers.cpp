#include "paceline/training/parallel/shard_buffers.h"

#include <cstring>

#include <ATen/ATen.h>

namespace paceline {

void ShardBuffers::begin_forward(std::int64_t index) {
  if (index == 0) {
    if (is_unfinished_) restore(at_start_);  // of a step that failed
    at_start_ = copy();
    is_unfinished_ = true;
  } else {
    restore(at_start_);
  }
}

void ShardBuffers::end_forward(std::int64_t index) {
  if (index == 0) after_first_ = copy();
}

void ShardBuffers::end_step() {
  restore(after_first_);
  is_unfinished_ = false;
}

std::vector<at::Tensor> ShardBuffers::copy() const {
  std::vector<at::Tensor> values;
  for (const auto& buffer : buffers_) values.push_back(buffer.detach().clone());
  return values;
}

// Autograd keeps BatchNorm's statistics for a backward pass that does not read them, and would
// refuse it after a change that it saw.
void ShardBuffers::restore(const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (buffers_[i].is_cpu() && buffers_[i].is_contiguous()) {
      std::memcpy(buffers_[i].data_ptr(), values[i].data_ptr(), buffers_[i].nbytes());
    } else {
      buffers_[i].copy_(values[i]);
    }
  }
}

}  // namespace paceline
