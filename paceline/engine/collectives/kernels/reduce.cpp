#include "paceline/engine/collectives/kernels/reduce.h"

#include <array>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace paceline {

namespace {

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Asks the processor, because Clang 16 does not know the name "f16c".
bool has_avx2_and_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
         (c & bit_F16C) != 0;
}
#endif

const ReduceVariant& variant() {
  static const ReduceVariant chosen = reduce_variants().front();
  return chosen;
}

}  // namespace

std::vector<ReduceVariant> reduce_variants() {
  std::vector<ReduceVariant> variants;
#if defined(__x86_64__)
  if (has_avx512()) variants.push_back({"avx512", &avx512::reduce});
  if (has_avx2_and_f16c()) variants.push_back({"avx2", &avx2::reduce});
#endif
  variants.push_back({"portable", &portable::reduce});
  return variants;
}

void reduce(std::span<const std::byte* const> sources, std::byte* out, std::size_t count,
            Dtype dtype, ReduceOp op, std::size_t divisor) {
  reduce(sources, std::span<std::byte* const>(&out, 1), count, dtype, op, divisor);
}

void reduce(std::span<const std::byte* const> sources, std::span<std::byte* const> outs,
            std::size_t count, Dtype dtype, ReduceOp op, std::size_t divisor) {
  // The list is on the stack except for large groups, because small sums take only nanoseconds.
  std::array<ReduceSource, 16> few;
  std::vector<ReduceSource> many(sources.size() > few.size() ? sources.size() : 0);
  ReduceSource* list = many.empty() ? few.data() : many.data();
  for (std::size_t i = 0; i < sources.size(); ++i) list[i].data = sources[i];
  variant().reduce({list, sources.size(), outs.data(), outs.size(), count, dtype, op,
                    ReduceResult::kFinal, divisor != 0 ? divisor : sources.size()});
}

void reduce_partials(std::span<const ReduceSource> sources, std::byte* out, std::size_t count,
                     Dtype dtype, ReduceOp op, ReduceResult result, std::size_t divisor) {
  reduce_partials(sources, std::span<std::byte* const>(&out, 1), count, dtype, op, result, divisor);
}

void reduce_partials(std::span<const ReduceSource> sources, std::span<std::byte* const> outs,
                     std::size_t count, Dtype dtype, ReduceOp op, ReduceResult result,
                     std::size_t divisor) {
  variant().reduce({sources.data(), sources.size(), outs.data(), outs.size(), count, dtype, op,
                    result, divisor});
}

const char* reduce_kernel_name() { return variant().name; }

}  // namespace paceline
