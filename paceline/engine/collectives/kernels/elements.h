// The element types of the reduce kernel, their accumulator types, and conversions of one element
// at a time. The conversions of every instruction set (reduce_avx2.cpp, reduce_avx512.cpp) must
// match these bit for bit. Each file that includes this one (reduce_<isa>.cpp, and
// block_kernels.cpp of the optimizers) first sets PACELINE_KERNEL to a namespace of its own.
//
// Rounding is to nearest, ties to even. A NaN becomes quiet and keeps its sign; bfloat16 keeps the
// upper part of the NaN's payload, float16 drops the payload (0x7e00). Subnormal numbers are not
// flushed to zero.

#include <bit>
#include <cstdint>

namespace paceline::PACELINE_KERNEL {
namespace {

struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t value;
};

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Half> {
  using type = float;
};
template <>
struct Accumulator<Brain> {
  using type = float;
};
template <>
struct Accumulator<Bool> {
  using type = std::uint8_t;
};

template <class T>
inline T widen(T value) {
  return value;
}
inline float widen(Brain value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
// Shifting the exponent and mantissa into place gives the value times 2^-112; one multiplication
// corrects it, subnormals included. Infinity and NaN have the largest exponent, which the
// multiplication cannot reach, so the code sets it; it also sets a NaN's quiet bit, as VCVTPH2PS
// does.
inline float widen(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  std::uint32_t special = magnitude >= (0x7c00u << 13) ? 0x7f800000u : 0u;
  special = magnitude > (0x7c00u << 13) ? 0x7fc00000u : special;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}
inline std::uint8_t widen(Bool value) { return static_cast<std::uint8_t>(value.value != 0); }

template <class T>
inline void narrow(T value, T& out) {
  out = value;
}
inline void narrow(float value, Brain& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded >> 16);
}
inline void narrow(float value, Half& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Subnormal halves: adding 0.5 lets the addition itself round the mantissa to the 10 bits that
  // stay.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  std::uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // rounds to 65536 or more: infinity
  result = magnitude > 0x7f800000u ? 0x7e00u : result;   // NaN
  out.bits = static_cast<std::uint16_t>(result | sign);
}
inline void narrow(std::uint8_t value, Bool& out) { out.value = value; }

}  // namespace
}  // namespace paceline::PACELINE_KERNEL
