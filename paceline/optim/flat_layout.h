#pragma once

// Where the elements of many tensors lie in one flat array: one tensor after the other, each from a
// cache line on. The array can be cut into equal parts, one a rank.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::optim {

class FlatLayout {
 public:
  // Requires: dense float32 tensors.
  FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts);

  // Elements, padding included; a multiple of the number of parts.
  std::int64_t count() const { return count_; }
  std::int64_t part_count() const { return count_ / num_parts_; }
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }

  // The elements of `flat` that belong to `tensor`, in its shape and memory format. Not a view in
  // autograd's sense; keeps `flat` alive.
  at::Tensor place(const at::Tensor& flat, std::size_t tensor, const at::Tensor& like) const;

 private:
  std::int64_t num_parts_;
  std::vector<std::int64_t> offsets_;
  std::int64_t count_ = 0;
};

}  // namespace paceline::optim
