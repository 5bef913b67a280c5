#pragma once

// The reduce kernel: combines all ranks' contributions to a range into one result.
//
// The library promises the order: a fixed balanced binary tree over the contributions in rank
// order, split at the largest power of two below their number; for five ranks,
// ((r0+r1)+(r2+r3))+r4. It does not depend on algorithm, transport or chunking, so a sum has the
// same bits everywhere. Every aligned block of 2^k contributions is a subtree: if each of n ranks
// first adds up 2^k shards in this order, the result has the bits that n 2^k ranks get. Blocks of
// other sizes are not subtrees: two ranks with three shards each do not get the bits of six ranks.
// float16 and bfloat16 are widened to float32, combined, and rounded once, to nearest even.
//
// A sum need not be computed in one step: a *partial* result covers a subtree, has the
// accumulator's type, and becomes a source of a later reduce. The operands and their order stay the
// same, and so do the bits.
//
// The kernel is compiled once per instruction set (kernels/*.cpp), and a variant is chosen at run
// time. The compiler vectorises it, except for the conversions of 16-bit types, which are written
// by hand. The float16 conversions use the processor's instructions (F16C, AVX-512). AVX-512's own
// conversion to bfloat16 (VCVTNEPS2BF16) is not used, because it treats subnormal numbers as zero,
// so a sum's bits would depend on the processor; a shift and an addition round instead. Two
// contributions are read, combined and written in one pass; more are combined in blocks that stay
// in the L1 cache. Every variant gives the same bits, except that a sum or product of two NaNs may
// return either of them. tests/engine/collectives/reduce_bits_test.cpp compares the variants for
// all 16-bit numbers.

#include <cstddef>
#include <span>
#include <vector>

#include "paceline/engine/collectives/op_traits.h"

namespace paceline {

// Requires: is_defined(op, dtype); every source and `out` hold `count` elements; `out` may equal a
// source but not overlap one partly. kMean divides by `divisor` or, if that is 0, by the number of
// sources. Thread safety: pure.
void reduce(std::span<const std::byte* const> sources, std::byte* out, std::size_t count,
            Dtype dtype, ReduceOp op, std::size_t divisor = 0);
// Writes the result to each of `outs`, which is cheaper than copying it afterwards.
void reduce(std::span<const std::byte* const> sources, std::span<std::byte* const> outs,
            std::size_t count, Dtype dtype, ReduceOp op, std::size_t divisor = 0);

// The bytes of one element of a partial result: 16-bit floats are accumulated in float32.
constexpr std::size_t partial_size_of(Dtype dtype) {
  const bool is_half = dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16;
  return is_half ? 4 : size_of(dtype);
}

// The joint contribution of `num_ranks` consecutive ranks.
struct ReduceSource {
  const std::byte* data = nullptr;
  std::size_t num_ranks = 1;
  bool is_partial = false;  // true: partial_size_of() bytes per element; false: one contribution
};

enum class ReduceResult : std::uint8_t { kPartial, kFinal };

// Requires, in addition to what reduce() requires: the sources are in rank order, and each is a
// whole subtree of the tree over all ranks that the sources cover. A final result divides a mean by
// `divisor` and rounds 16-bit types. A partial result must not overlap sources of another element
// size, and is written to one destination only.
void reduce_partials(std::span<const ReduceSource> sources, std::byte* out, std::size_t count,
                     Dtype dtype, ReduceOp op, ReduceResult result, std::size_t divisor);
void reduce_partials(std::span<const ReduceSource> sources, std::span<std::byte* const> outs,
                     std::size_t count, Dtype dtype, ReduceOp op, ReduceResult result,
                     std::size_t divisor);

// The instruction set in use: "avx512", "avx2" or "portable".
const char* reduce_kernel_name();

// The arguments of a variant of the kernel; each instruction set has one, and reduce.cpp chooses.
struct ReduceArguments {
  const ReduceSource* sources;
  std::size_t num_sources;
  std::byte* const* outs;  // all destinations of the result; a partial result has only one
  std::size_t num_outs;
  std::size_t count;
  Dtype dtype;
  ReduceOp op;
  ReduceResult result;
  std::size_t divisor;  // divisor of a mean
};

namespace portable {
void reduce(const ReduceArguments& arguments);
}
namespace avx2 {
void reduce(const ReduceArguments& arguments);
}
namespace avx512 {
void reduce(const ReduceArguments& arguments);
}

struct ReduceVariant {
  const char* name;
  void (*reduce)(const ReduceArguments& arguments);
};

// The variants that this processor can run, the fastest first and the portable one last.
std::vector<ReduceVariant> reduce_variants();

}  // namespace paceline
