#pragma once

// Loops that are compiled with options of their own, without LibTorch: the search for infinities
// and NaNs, which runs as fast as memory is read, and the arithmetic of low-rank factors.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>

namespace paceline {

// Whether one of the values, given by their bits, is not finite: all bits of its exponent are set.
bool has_non_finite_32(const std::uint32_t* values, std::size_t count);
bool has_non_finite_64(const std::uint64_t* values, std::size_t count);
// float16 has 5 bits of exponent, 0x7c00; bfloat16 has 8, 0x7f80.
bool has_non_finite_16(const std::uint16_t* values, std::size_t count, std::uint16_t exponent);

// Every rank computes its low-rank factors itself, and all must get the same bits, also where their
// processors differ; LibTorch's QR and BLAS may not give them. Every element is computed by the
// same operations in the same order, and none is fused.

// Makes the columns of a row-major matrix orthonormal, one after the other (Gram-Schmidt, each
// column twice, in float64). A column of zeros stays one; `epsilon` is added to each column's norm.
void orthogonalize(float* matrix, std::int64_t rows, std::int64_t columns, double epsilon);

// product = p x transposed q: of rows x others, with p of rows x rank and q of others x rank, all
// row-major.
void multiply_factors(const float* p, const float* q, std::int64_t rows, std::int64_t others,
                      std::int64_t rank, float* product);

}  // namespace paceline
