#pragma once

// Where the elements of many tensors lie in one flat row: one tensor after the other, each from a
// multiple of 16 elements on. The row can be cut into equal parts, one a rank. A part is a whole
// number of blocks, so that the blocks of a row do not depend on the number of parts.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::optim {

class FlatLayout {
 public:
  FlatLayout() = default;
  // Requires: dense tensors.
  FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts);

  // Elements, padding included; a multiple of the number of parts.
  std::int64_t count() const { return count_; }
  std::int64_t part_count() const { return count_ / num_parts_; }
  // Elements of a block: 1,024, or 64 in a row of less than 65,536.
  std::int64_t block() const { return block_; }
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }

  // The elements of `flat` that belong to `tensor`, in its shape and memory format. Not a view in
  // autograd's sense; keeps `flat` alive.
  at::Tensor place(const at::Tensor& flat, std::size_t tensor, const at::Tensor& like) const;

 private:
  std::int64_t num_parts_ = 1;
  std::int64_t block_ = 0;
  std::vector<std::int64_t> offsets_;
  std::int64_t count_ = 0;
};

}  // namespace paceline::optim
