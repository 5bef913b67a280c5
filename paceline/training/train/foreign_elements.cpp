#include "paceline/training/train/foreign_elements.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <ATen/ATen.h>

namespace paceline {
namespace {

// A float of 8 bits: the sign, the exponent, then `mantissa` bits.
float small_float(std::uint8_t bits, int mantissa, int bias) {
  const int exponent = (bits & 0x7F) >> mantissa;
  const int fraction = bits & ((1 << mantissa) - 1);
  const float magnitude =
      exponent == 0
          ? std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa)
          : std::ldexp(static_cast<float>(fraction + (1 << mantissa)), exponent - bias - mantissa);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// OCP's FP8 (2023): E4M3 has no infinities, and one NaN of each sign.
float from_e4m3(std::uint8_t bits) {
  if ((bits & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  return small_float(bits, 3, 7);
}

// E5M2 is the upper half of IEEE's half.
float from_e5m2(std::uint8_t bits) {
  if ((bits & 0x7F) > 0x7C) return std::numeric_limits<float>::quiet_NaN();
  if ((bits & 0x7F) == 0x7C) {
    return (bits & 0x80) != 0 ? -std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::infinity();
  }
  return small_float(bits, 2, 15);
}

template <class From, class To, class Widen>
void widen_all(std::span<const std::byte> bytes, at::Tensor& to, const Widen& widen) {
  To* out = to.data_ptr<To>();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(From)) {
    From value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    *out++ = widen(value);
  }
}

std::optional<at::Tensor> room_for(const std::vector<std::int64_t>& shape, std::size_t bytes,
                                   std::size_t element, at::ScalarType type) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, static_cast<std::size_t>(size), &count)) return {};
  }
  if (bytes % element != 0 || bytes / element != count) return {};
  return at::empty(shape, type);
}

}  // namespace

std::optional<at::Tensor> widened(std::string_view foreign_type,
                                  const std::vector<std::int64_t>& shape,
                                  std::span<const std::byte> bytes) {
  std::optional<at::Tensor> to;
  if (foreign_type == "F8_E4M3" || foreign_type == "F8_E5M2") {
    to = room_for(shape, bytes.size(), 1, at::kFloat);
    const auto widen = foreign_type == "F8_E4M3" ? from_e4m3 : from_e5m2;
    if (to) widen_all<std::uint8_t, float>(bytes, *to, widen);
  } else if (foreign_type == "U16") {
    to = room_for(shape, bytes.size(), 2, at::kInt);
    const auto widen = [](std::uint16_t value) { return std::int32_t{value}; };
    if (to) widen_all<std::uint16_t, std::int32_t>(bytes, *to, widen);
  } else if (foreign_type == "U32") {
    to = room_for(shape, bytes.size(), 4, at::kLong);
    const auto widen = [](std::uint32_t value) { return std::int64_t{value}; };
    if (to) widen_all<std::uint32_t, std::int64_t>(bytes, *to, widen);
  }
  return to;
}

}  // namespace paceline
