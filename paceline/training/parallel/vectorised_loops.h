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

// The arithmetic of low-rank factors that every rank does by itself and that must give all ranks
// the same bits, also where their processors differ: LibTorch's QR and BLAS may not. Every element
// is computed by the same operations in the same order, and none is fused. Depends on no LibTorch.
//
// Thread safety: pure functions.

// Makes the columns of a row-major matrix orthonormal, one after the other (Gram-Schmidt, each
// column twice, in float64). A column of zeros stays one; `epsilon` is added to each column's norm.
void orthogonalize(float* matrix, std::int64_t rows, std::int64_t columns, double epsilon);

// product = p x transposed q: of rows x others, with p of rows x rank and q of others x rank, all
// row-major.
void multiply_factors(const float* p, const float* q, std::int64_t rows, std::int64_t others,
                      std::int64_t rank, float* product);

}  // namespace paceline
