#include "paceline/tensor/flat_layout.h"

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

FlatLayout::FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts)
    : type_(tensors.empty() ? at::kFloat : tensors.front().scalar_type()), num_parts_(num_parts) {
  for (const auto& tensor : tensors) append(tensor.numel());
  block_ = count_ < kSmallArray ? kSmallBlock : kBlock;
  count_ = round_up(count_, block_ * num_parts_);
}

std::int64_t FlatLayout::append(std::int64_t count) {
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
