#pragma once

// A typed view of contiguous elements that a collective reads or fills. A value; it owns nothing.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "paceline/engine/core/dtype.h"

namespace paceline {

// The Dtype of a C++ type; float16 and bfloat16 have none and are named by hand.
template <class T>
constexpr Dtype dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>)
    return Dtype::kFloat32;
  else if constexpr (std::is_same_v<U, double>)
    return Dtype::kFloat64;
  else if constexpr (std::is_same_v<U, bool>)
    return Dtype::kBool;
  else if constexpr (std::is_same_v<U, std::uint8_t> || std::is_same_v<U, std::byte>)
    return Dtype::kUint8;
  else if constexpr (std::is_signed_v<U> && sizeof(U) == 1)
    return Dtype::kInt8;
  else if constexpr (std::is_signed_v<U> && sizeof(U) == 2)
    return Dtype::kInt16;
  else if constexpr (std::is_signed_v<U> && sizeof(U) == 4)
    return Dtype::kInt32;
  else if constexpr (std::is_signed_v<U> && sizeof(U) == 8)
    return Dtype::kInt64;
  else
    static_assert(sizeof(U) == 0, "this type has no Dtype");
}

// Whose memory it is. The numbers are part of the wire format.
enum class Device : std::uint8_t { kCpu = 0, kCuda = 1 };

struct Buffer {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  Dtype dtype = Dtype::kUint8;
  Device device = Device::kCpu;

  Buffer() = default;
  Buffer(void* first, std::size_t elements, Dtype type, Device where = Device::kCpu)
      : data(static_cast<std::byte*>(first)), count(elements), dtype(type), device(where) {}
  template <class T, std::size_t Extent>
    requires(!std::is_const_v<T>)
  Buffer(std::span<T, Extent> elements)  // NOLINT: the conversion is the point
      : Buffer(elements.data(), elements.size(), dtype_of<T>()) {}

  std::size_t bytes() const { return count * size_of(dtype); }
};

struct ConstBuffer {
  const std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  Dtype dtype = Dtype::kUint8;
  Device device = Device::kCpu;

  ConstBuffer() = default;
  ConstBuffer(const void* first, std::size_t elements, Dtype type, Device where = Device::kCpu)
      : data(static_cast<const std::byte*>(first)), count(elements), dtype(type), device(where) {}
  template <class T, std::size_t Extent>
  ConstBuffer(std::span<T, Extent> elements)  // NOLINT: the conversion is the point
      : ConstBuffer(elements.data(), elements.size(), dtype_of<T>()) {}
  ConstBuffer(const Buffer& buffer)  // NOLINT: the conversion is the point
      : ConstBuffer(buffer.data, buffer.count, buffer.dtype, buffer.device) {}

  std::size_t bytes() const { return count * size_of(dtype); }
};

}  // namespace paceline
