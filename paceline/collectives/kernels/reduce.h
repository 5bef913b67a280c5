#pragma once

// Combines one range of all ranks' contributions into one.
//
// The order is the library's promise: a fixed balanced binary tree over the contributions in rank
// order, split at the largest power of two below their number. ((r0+r1)+(r2+r3))+r4 for five ranks.
// It does not depend on algorithm, transport or chunking, so a sum has the same bits everywhere;
// and because every aligned power-of-two group of ranks is a subtree, 2^k ranks that first add up m
// shards each get the bits of m 2^k ranks. float16 and bfloat16 are widened to float32, combined,
// and rounded once, to nearest even.
//
// Vectorised by the compiler, once per instruction set (kernels/*.cpp), chosen at run time.

#include <cstddef>
#include <span>

#include "paceline/collectives/reduce_op.h"

namespace paceline {

// Requires: is_defined(op, dtype); every source and `out` hold `count` elements; `out` may equal a
// source but not overlap one partly. kMean divides by the number of sources. Thread safety: pure.
void reduce(std::span<const std::byte* const> sources, std::byte* out, std::size_t count,
            Dtype dtype, ReduceOp op);

// The instruction set in use: "avx512", "avx2" or "portable".
const char* reduce_kernel_name();

}  // namespace paceline
