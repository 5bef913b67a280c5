#include "paceline/optim/flat_layout.h"

#include <ATen/ATen.h>

#include "paceline/optim/block_kernels.h"

namespace paceline::optim {
namespace {

constexpr std::int64_t kLine = 16;
// Small rows have small blocks, so that every rank has some of them.
constexpr std::int64_t kSmallBlock = 64;
constexpr std::int64_t kSmallRow = 65536;

std::int64_t round_up(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts)
    : num_parts_(num_parts) {
  for (const auto& tensor : tensors) {
    offsets_.push_back(count_);
    count_ += round_up(tensor.numel(), kLine);
  }
  block_ = count_ < kSmallRow ? kSmallBlock : kBlock;
  count_ = round_up(count_, block_ * num_parts_);
}

at::Tensor FlatLayout::place(const at::Tensor& flat, std::size_t tensor,
                             const at::Tensor& like) const {
  auto* const begin = static_cast<std::byte*>(flat.data_ptr()) +
                      static_cast<std::size_t>(offsets_[tensor]) * flat.itemsize();
  return at::from_blob(
      begin, like.sizes(), like.strides(), [flat](void*) {}, flat.options());
}

}  // namespace paceline::optim
