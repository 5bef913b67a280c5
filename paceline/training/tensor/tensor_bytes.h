#pragma once

// Lists of tensors as bytes.
//
// Thread safety: the functions may be called from any thread.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

// Convert tensors to bytes and back. Each tensor is written as its type, its number of dimensions,
// its sizes and its elements. Error(kCorrupt) for bytes that are not such a list.
std::string to_bytes(const std::vector<at::Tensor>& tensors);
std::vector<at::Tensor> tensors_from_bytes(const std::string& bytes);

}  // namespace paceline
