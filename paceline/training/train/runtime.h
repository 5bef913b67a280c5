#pragma once

// The process around the training: threads, memory allocator, and what LibTorch computes with.

#include <string>

namespace paceline::train {

// Lets the C library keep large freed blocks instead of returning them to the kernel, whose pages
// would fault in again every step. Costs the peak's memory until the process ends; measured at a
// quarter of a CNN's step time. Call once, at the beginning of main().
void keep_large_blocks();

// Sets the intra-op threads of LibTorch and of OpenBLAS, which has a pool of its own. 0: what the
// launcher's OMP_NUM_THREADS says, otherwise LibTorch's default. Returns the number in effect.
int set_num_threads(int num_threads);

// "OpenBLAS 0.3.21", "MKL", ...; "reference BLAS" when matrix products run about 20 times slower
// than they could.
std::string blas_name();
bool is_reference_blas();

// "LibTorch 1.13.1, OpenBLAS 0.3.21".
std::string describe_libtorch();

}  // namespace paceline::train
