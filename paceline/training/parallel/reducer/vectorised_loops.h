#pragma once

// Loops that are compiled with options of their own, without LibTorch: the search for infinities
// and NaNs, which runs as fast as memory can be read, and the arithmetic of low-rank factors.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>

namespace paceline {

// Whether one of the values, given by their bits, is not finite, which means that all bits of its
// exponent are set.
bool has_non_finite_32(const std::uint32_t* values, std::size_t count);
bool has_non_finite_64(const std::uint64_t* values, std::size_t count);
// float16 has 5 bits of exponent, 0x7c00; bfloat16 has 8, 0x7f80.
bool has_non_finite_16(const std::uint16_t* values, std::size_t count, std::uint16_t exponent);

// Makes the columns of a row-major matrix orthonormal, one after another (Gram-Schmidt, each column
// twice, in float64). A column of zeros stays as it is; `epsilon` is added to each column's norm.
//
// Every rank computes its low-rank factors itself, and all ranks must get the same bits even if
// their processors differ, which LibTorch's QR and BLAS do not ensure. Here every element is
// computed by the same operations in the same order, and none is fused.
void orthogonalize(float* matrix, std::int64_t rows, std::int64_t columns, double epsilon);

// product = p x transposed q, a matrix of rows x others. p is rows x rank and q is others x rank;
// all are row-major.
void multiply_factors(const float* p, const float* q, std::int64_t rows, std::int64_t others,
                      std::int64_t rank, float* product);

}  // namespace paceline
