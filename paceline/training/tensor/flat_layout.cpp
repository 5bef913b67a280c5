#include "paceline/training/tensor/flat_layout.h"

#include <ATen/ATen.h>

namespace paceline {
namespace {

constexpr std::int64_t kLineBytes = 64;
// Small arrays have small blocks, so that every rank has some of them.
constexpr std::int64_t kSmallArray = 65536;

std::int64_t round_up(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts, std::int64_t block)
    : type_(tensors.empty() ? at::kFloat : tensors.front().scalar_type()),
      num_parts_(num_parts),
      block_(block) {
  if (block_ == 0) {
    std::int64_t elements = 0;
    for (const auto& tensor : tensors) elements += tensor.numel();
    block_ = elements < kSmallArray ? kSmallBlock : kBlock;
  }
  for (const auto& tensor : tensors) append(tensor.numel());
  count_ = round_up(count_, block_ * num_parts_);
}

std::int64_t FlatLayout::append(std::int64_t count) {
  const bool would_cross = block_ > 0 && count_ % block_ + count > block_;
  if (would_cross) count_ = round_up(count_, block_);
  offsets_.push_back(count_);
  count_ += round_up(count, kLineBytes / static_cast<std::int64_t>(c10::elementSize(type_)));
  return offsets_.back();
}

at::Tensor FlatLayout::place(const at::Tensor& flat, std::size_t tensor,
                             const at::Tensor& like) const {
  const auto offset = static_cast<std::size_t>(offsets_[tensor]) * flat.element_size();
  return at::from_blob(
      static_cast<std::byte*>(flat.data_ptr()) + offset, like.sizes(), like.strides(),
      [flat](void*) {}, flat.options(), flat.device());
}

}  // namespace paceline
