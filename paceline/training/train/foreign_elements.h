#pragma once

// Element types of other people's files as the engine's next wider ones: exactly, every value.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

// A tensor of a type that the engine lacks, by its name in a safetensors file: F8_E4M3 and F8_E5M2
// become float32, U16 int32 and U32 int64. Nothing for other types, such as F4 and F8_E8M0, and
// where the bytes do not fit the shape.
std::optional<at::Tensor> widened(std::string_view foreign_type,
                                  const std::vector<std::int64_t>& shape,
                                  std::span<const std::byte> bytes);

}  // namespace paceline
