#pragma once

// Makes a tensor a field of a message, also in vectors and optional fields:
//
//   struct Batch {
//     at::Tensor images, labels;
//     static auto fields(auto& m) { return std::tie(m.images, m.labels); }
//   };
//
// The tensor's element type, sizes and elements are sent, but not whether it requires a gradient.
// Large tensors are not copied into the message, so their elements must not change until the call
// has ended. A tensor with gaps or transposed dimensions is copied first. The receiver gets a
// contiguous tensor; an undefined one arrives undefined. A worker's call to itself copies nothing.
//
// Element types: bool, uint8, int8 to int64, float16, bfloat16, float32, float64, complex64 and
// complex128. Throws Error(kUnsupported) for other types, for sparse and other layouts that have no
// strides, and for tensors that are not on the CPU.
//
// The bytes are those of the message TensorFields, which programs without LibTorch can read and
// write.

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "paceline/engine/rpc/protocol/message.h"

namespace paceline::rpc::detail {

inline constexpr std::size_t kMaxTensorDimensions = 64;

struct TensorFields {
  std::uint8_t type = 0;  // 0: undefined; otherwise the number of a type
  std::span<const std::int64_t> sizes{};
  std::span<const std::uint8_t> elements{};  // in row-major order
  static auto fields(auto& self) { return std::tie(self.type, self.sizes, self.elements); }
};

template <>
struct FieldCodec<at::Tensor> {
  static constexpr FieldKind kKind = FieldKind::kMessage;
  static constexpr std::size_t kMinBytes = 4;
  static void write(MessageWriter& out, const at::Tensor& tensor);
  static void read(MessageReader& in, at::Tensor& tensor);
};

}  // namespace paceline::rpc::detail
