#pragma once

// The reduce kernel's variants, one per instruction set; reduce.cpp chooses.

#include <cstddef>
#include <vector>

#include "paceline/engine/collectives/kernels/reduce.h"

namespace paceline {

struct ReduceArguments {
  const ReduceSource* sources;
  std::size_t num_sources;
  std::byte* const* outs;  // all get the result; a partial one has one place
  std::size_t num_outs;
  std::size_t count;
  Dtype dtype;
  ReduceOp op;
  ReduceResult result;
  std::size_t divisor;  // of a mean
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

// Those that this processor can run, the fastest first and the portable one last.
std::vector<ReduceVariant> reduce_variants();

}  // namespace paceline
