#pragma once

// Settings of this process's memory allocator, and facts about LibTorch's BLAS library.
//
// Thread safety: the functions may be called from any thread, except as stated.

#include <string>

namespace paceline::train {

// Makes the C library keep large freed blocks instead of returning them to the kernel; otherwise
// their pages would fault in again in every step. The process keeps its peak memory until it ends.
// In a measurement, the page faults took a quarter of a CNN's step. Call it once, at the beginning
// of main().
void keep_large_blocks();

// Returns "MKL", "OpenBLAS 0.3.21" or, if LibTorch uses neither, "reference BLAS", whose matrix
// products are about 20 times slower.
std::string blas_name();
bool is_reference_blas();

// Returns, for instance, "LibTorch 1.13.1, OpenBLAS 0.3.21".
std::string describe_libtorch();

}  // namespace paceline::train
