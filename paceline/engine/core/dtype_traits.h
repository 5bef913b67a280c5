#pragma once

// The properties and names of element types.
//
// Thread safety: pure functions.

#include <array>
#include <cstddef>
#include <string_view>

#include "paceline/engine/core/dtype.h"

namespace paceline {

using detail::size_of;

inline constexpr std::array kAllDtypes = {
    Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8,
    Dtype::kInt16,   Dtype::kInt32,   Dtype::kInt64,   Dtype::kUint8,    Dtype::kBool};

constexpr bool is_floating_point(Dtype dtype) { return dtype <= Dtype::kBfloat16; }

constexpr std::string_view name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kFloat64:
      return "float64";
    case Dtype::kFloat16:
      return "float16";
    case Dtype::kBfloat16:
      return "bfloat16";
    case Dtype::kInt8:
      return "int8";
    case Dtype::kInt16:
      return "int16";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt64:
      return "int64";
    case Dtype::kUint8:
      return "uint8";
    case Dtype::kBool:
      return "bool";
  }
  return "unknown";
}

}  // namespace paceline
