#include "paceline/training/optim/word_sums.h"

#include <functional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/training/optim/block_kernels.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {
namespace {

// Elements that one thread adds up at a time.
constexpr std::int64_t kSumGrain = 131072;

}  // namespace

std::uint32_t sum_of(Dtype type, const std::byte* values, std::int64_t count) {
  return at::parallel_reduce(
      0, count, kSumGrain, std::uint32_t{0},
      [type, values](std::int64_t begin, std::int64_t end, std::uint32_t sum) {
        const std::byte* const from = values + static_cast<std::size_t>(begin) * size_of(type);
        return sum + sum_words(type, from, end - begin);
      },
      std::plus<>());
}

std::uint32_t sum_of(const at::Tensor& tensor) {
  return sum_of(to_dtype(tensor.scalar_type()), static_cast<const std::byte*>(tensor.data_ptr()),
                tensor.numel());
}

}  // namespace paceline::optim
