#pragma once

// The arithmetic of low-rank factors that every rank does by itself and that must give all ranks
// the same bits, also where their processors differ: LibTorch's QR and BLAS may not. Every element
// is computed by the same operations in the same order, and none is fused. Depends on no LibTorch.
//
// Thread safety: pure functions.

#include <cstdint>

namespace paceline {

// Makes the columns of a row-major matrix orthonormal, one after the other (Gram-Schmidt, each
// column twice, in float64). A column of zeros stays one; `epsilon` is added to each column's norm.
void orthogonalize(float* matrix, std::int64_t rows, std::int64_t columns, double epsilon);

// product = p x transposed q: of rows x others, with p of rows x rank and q of others x rank, all
// row-major.
void multiply_factors(const float* p, const float* q, std::int64_t rows, std::int64_t others,
                      std::int64_t rank, float* product);

}  // namespace paceline
