#include "paceline/collectives/kernels/reduce.h"

#include "paceline/collectives/kernels/reduce_variant.h"

namespace paceline {
namespace {

struct Variant {
  const char* name;
  void (*reduce)(const ReduceArguments&);
};

Variant choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {"avx512", &avx512::reduce};
  }
  if (__builtin_cpu_supports("avx2")) return {"avx2", &avx2::reduce};
#endif
  return {"portable", &portable::reduce};
}

const Variant& variant() {
  static const Variant chosen = choose();
  return chosen;
}

}  // namespace

void reduce(std::span<const std::byte* const> sources, std::byte* out, std::size_t count,
            Dtype dtype, ReduceOp op) {
  variant().reduce({sources.data(), sources.size(), out, count, dtype, op});
}

const char* reduce_kernel_name() { return variant().name; }

}  // namespace paceline
