#include "paceline/collectives/kernels/reduce.h"

#include <array>
#include <vector>

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
  reduce(sources, std::span<std::byte* const>(&out, 1), count, dtype, op);
}

void reduce(std::span<const std::byte* const> sources, std::span<std::byte* const> outs,
            std::size_t count, Dtype dtype, ReduceOp op) {
  // On the stack for all but large groups: small sums are a matter of nanoseconds.
  std::array<ReduceSource, 16> few;
  std::vector<ReduceSource> many(sources.size() > few.size() ? sources.size() : 0);
  ReduceSource* list = many.empty() ? few.data() : many.data();
  for (std::size_t i = 0; i < sources.size(); ++i) list[i].data = sources[i];
  variant().reduce({list, sources.size(), outs.data(), outs.size(), count, dtype, op,
                    ReduceResult::kFinal, sources.size()});
}

void reduce_partials(std::span<const ReduceSource> sources, std::byte* out, std::size_t count,
                     Dtype dtype, ReduceOp op, ReduceResult result, std::size_t num_ranks) {
  reduce_partials(sources, std::span<std::byte* const>(&out, 1), count, dtype, op, result,
                  num_ranks);
}

void reduce_partials(std::span<const ReduceSource> sources, std::span<std::byte* const> outs,
                     std::size_t count, Dtype dtype, ReduceOp op, ReduceResult result,
                     std::size_t num_ranks) {
  variant().reduce({sources.data(), sources.size(), outs.data(), outs.size(), count, dtype, op,
                    result, num_ranks});
}

const char* reduce_kernel_name() { return variant().name; }

}  // namespace paceline
