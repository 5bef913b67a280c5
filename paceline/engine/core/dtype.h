#pragma once

// Element types that a collective can carry. The numbers are part of the wire format: never use a
// number for another type.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace paceline {

enum class Dtype : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,   // IEEE 754 half, summed in float32
  kBfloat16 = 3,  // the upper half of a float32, summed in float32
  kInt8 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kUint8 = 8,
  kBool = 9,  // one byte, 0 or 1; sum and max are "or", product and min are "and"
};

namespace detail {

// Bytes of one element.
constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
    case Dtype::kInt64:
      return 8;
    case Dtype::kFloat32:
    case Dtype::kInt32:
      return 4;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
    case Dtype::kInt16:
      return 2;
    case Dtype::kInt8:
    case Dtype::kUint8:
    case Dtype::kBool:
      return 1;
  }
  return 1;
}

// The number of the Dtype that stands for the C++ type T; -1 if there is none.
template <class T>
constexpr int dtype_number() {
  if constexpr (std::is_same_v<T, float>)
    return static_cast<int>(Dtype::kFloat32);
  else if constexpr (std::is_same_v<T, double>)
    return static_cast<int>(Dtype::kFloat64);
  else if constexpr (std::is_same_v<T, bool>)
    return static_cast<int>(Dtype::kBool);
  else if constexpr (std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::byte>)
    return static_cast<int>(Dtype::kUint8);
  else if constexpr (std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) <= 8)
    return static_cast<int>(sizeof(T) == 1   ? Dtype::kInt8
                            : sizeof(T) == 2 ? Dtype::kInt16
                            : sizeof(T) == 4 ? Dtype::kInt32
                                             : Dtype::kInt64);
  else
    return -1;
}

template <class T>
constexpr Dtype require_dtype() {
  static_assert(
      dtype_number<T>() >= 0,
      "an element is a float, double, bool, signed integer, std::uint8_t or std::byte; for "
      "float16 and bfloat16 write Buffer(pointer, count, dtype)");
  return static_cast<Dtype>(dtype_number<T>());
}

}  // namespace detail

}  // namespace paceline
