#pragma once

// Looks for infinities and NaNs as fast as memory is read. It depends on nothing, least of all on
// LibTorch.

#include <cstddef>
#include <cstdint>

namespace paceline {

// Whether one of the values, given by their bits, is not finite: all bits of its exponent are set.
// Pure.
bool has_non_finite_32(const std::uint32_t* values, std::size_t count);
bool has_non_finite_64(const std::uint64_t* values, std::size_t count);
// float16 has 5 bits of exponent, 0x7c00; bfloat16 has 8, 0x7f80.
bool has_non_finite_16(const std::uint16_t* values, std::size_t count, std::uint16_t exponent);

}  // namespace paceline
