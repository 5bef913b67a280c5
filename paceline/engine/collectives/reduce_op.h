#pragma once

// How elements of all ranks become one. The numbers are part of the wire format.

#include <cstdint>
#include <string_view>

#include "paceline/engine/core/dtype.h"

namespace paceline {

enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kMean = 1,  // the sum, divided by the number of ranks or Call::divisor; floating point only
  kProduct = 2,
  kMin = 3,     // NaN wins, at every rank and position
  kMax = 4,     // NaN wins
  kBitAnd = 5,  // integers and bool only, as the two below
  kBitOr = 6,
  kBitXor = 7,
};

constexpr std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kBitAnd:
      return "bit_and";
    case ReduceOp::kBitOr:
      return "bit_or";
    case ReduceOp::kBitXor:
      return "bit_xor";
  }
  return "unknown";
}

constexpr bool is_bitwise(ReduceOp op) { return op >= ReduceOp::kBitAnd; }

// Whether `op` is defined for `dtype`.
constexpr bool is_defined(ReduceOp op, Dtype dtype) {
  if (is_bitwise(op)) return !is_floating_point(dtype);
  if (op == ReduceOp::kMean) return is_floating_point(dtype);
  return true;
}

}  // namespace paceline
