#pragma once

// Whether a program has written to a tensor since a moment. LibTorch counts the operations that
// write to a tensor or to a view of it, and a tensor that was given other memory (set_data()) has
// another storage. Memory that changed by itself shows in neither, nor does a write through data()
// or data_ptr().
//
// Thread safety: none.

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

namespace paceline {

class WriteMark {
 public:
  // Holds for no tensor.
  WriteMark() = default;
  explicit WriteMark(const at::Tensor& tensor);

  // Requires: the tensor of the constructor.
  bool holds_for(const at::Tensor& tensor) const;

 private:
  // Keeps the storage's address from being used again, not its memory.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* data_ = nullptr;
  std::int64_t version_ = 0;
};

// Counts a write past LibTorch's operations, as they would: marks of the tensor hold no more.
void count_write(const at::Tensor& tensor);

}  // namespace paceline
