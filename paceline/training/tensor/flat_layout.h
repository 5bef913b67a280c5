#pragma once

// Where the elements of many tensors lie in one flat array of one type: one tensor after the other,
// each from a cache line on, so that no two share one. Gradient buckets and sharded optimizers use
// it. The array can be cut into equal parts, one a rank; a part is a whole number of blocks, so
// that the blocks of an array do not depend on the number of parts. Costs at most 63 bytes a
// tensor, or a block where that is larger.
//
// A tensor cut into blocks from its own beginning has each of them within a block of the array, and
// so within a part: sums over its blocks are the same whatever the array and the number of parts.
// A value.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

class FlatLayout {
 public:
  FlatLayout() : FlatLayout(at::kFloat) {}
  explicit FlatLayout(at::ScalarType type) : type_(type) {}
  static constexpr std::int64_t kBlock = 1024, kSmallBlock = 64;

  // Of all `tensors`, with a count that `num_parts` parts of whole blocks share equally. `block`:
  // 0 for kBlock, or kSmallBlock where that leaves the tensors less than 65,536 elements.
  // Requires: dense tensors of one type; float32 when there are none.
  FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts, std::int64_t block = 0);

  // Adds a tensor of `count` elements behind the others and returns its offset.
  std::int64_t append(std::int64_t count);

  at::ScalarType type() const { return type_; }
  // Elements, padding included; a multiple of the number of parts.
  std::int64_t count() const { return count_; }
  std::int64_t part_count() const { return count_ / num_parts_; }
  // Elements of a block.
  std::int64_t block() const { return block_; }
  // In elements, from the beginning of the array.
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }

  // The elements of `flat` that belong to `tensor`, in the shape and memory format of `like`. Not a
  // view in autograd's sense: optimizers detach gradients in place, which views refuse. Keeps
  // `flat` alive.
  at::Tensor place(const at::Tensor& flat, std::size_t tensor, const at::Tensor& like) const;

 private:
  at::ScalarType type_;
  std::int64_t num_parts_ = 1;
  std::int64_t block_ = 0;  // 0: tensors only follow each other
  std::vector<std::int64_t> offsets_;
  std::int64_t count_ = 0;
};

}  // namespace paceline
