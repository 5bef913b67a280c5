#pragma once

// Loops that are compiled with their own options, without LibTorch: the search for infinities and
// NaNs, which runs as fast as memory can be read, and the arithmetic of low-rank factors.
//
// Thread safety: the functions use only their arguments.

#include <cstddef>
#include <cstdint>

namespace paceline {

// Whether any of the values, given by their bits, is infinite or NaN, that is, has an exponent
// whose bits are all set.
bool has_non_finite_32(const std::uint32_t* values, std::size_t count);
bool has_non_finite_64(const std::uint64_t* values, std::size_t count);
// `exponent`: the mask of the exponent's bits: 0x7c00 for float16 (5 bits), 0x7f80 for bfloat16 (8
// bits).
bool has_non_finite_16(const std::uint16_t* values, std::size_t count, std::uint16_t exponent);

// Makes the columns of a row-major matrix orthonormal, in order (Gram-Schmidt, each column twice,
// in float64). A column of zeros does not change; `epsilon` is added to each column's norm.
//
// Every rank computes its low-rank factors itself, and all ranks must get the same bits even if
// their processors differ, which LibTorch's QR and BLAS do not guarantee. Here every element is
// computed by the same operations in the same order, and no operations are fused.
void orthogonalize(float* matrix, std::int64_t rows, std::int64_t columns, double epsilon);

// product = p x transposed q, a matrix of rows x others. p is rows x rank and q is others x rank;
// all matrices are row-major.
void multiply_factors(const float* p, const float* q, std::int64_t rows, std::int64_t others,
                      std::int64_t rank, float* product);

}  // namespace paceline
