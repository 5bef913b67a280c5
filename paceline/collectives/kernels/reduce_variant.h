#pragma once

// The reduce kernel's variants, one per instruction set; reduce.cpp chooses.

#include <cstddef>

#include "paceline/collectives/reduce_op.h"

namespace paceline {

struct ReduceArguments {
  const std::byte* const* sources;
  std::size_t num_sources;
  std::byte* out;
  std::size_t count;
  Dtype dtype;
  ReduceOp op;
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

}  // namespace paceline
