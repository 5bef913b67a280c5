#pragma once

// Adds the gradients of micro-batches to the parameters' .grad in the order of micro-batches,
// whatever the order in which they come: the same additions as one process makes that takes one
// micro-batch after the other. What comes early waits, with its memory; in the named schedules
// nothing does.
//
// Thread safety: none.

#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

class GradientOrder {
 public:
  explicit GradientOrder(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}

  // One gradient for each parameter; undefined: the micro-batch did not use it.
  void add(int micro_batch, std::vector<at::Tensor> gradients);
  // The next step's first micro-batch is 0 again.
  void begin_step();

 private:
  const std::vector<at::Tensor> parameters_;
  std::map<int, std::vector<at::Tensor>> early_;
  int next_ = 0;
};

}  // namespace paceline
