#include "paceline/training/optim/rules/tensor_blocks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <unordered_set>

#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {

namespace {

constexpr std::int64_t kBlocksAThread = 32;

void require_floats(const at::Tensor& gradient, std::size_t parameter) {
  const auto type = gradient.scalar_type();
  check(gradient.layout() == at::kStrided &&
            (gradient.device().is_cpu() || gradient.device().is_cuda()) &&
            (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf),
        "the gradient of parameter {} is not a dense float32, bfloat16 or float16 tensor on the "
        "CPU or a CUDA device",
        parameter);
}

// Calls `visit(number, parameter)` once for each tensor that has a gradient.
template <class Visit>
void for_gradients(const std::vector<at::Tensor>& parameters, const Visit& visit) {
  std::unordered_set<const void*> known;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!own_gradient(parameters[i]).defined()) continue;
    if (!known.insert(parameters[i].unsafeGetTensorImpl()).second) continue;
    require_floats(own_gradient(parameters[i]), i);
    visit(i, parameters[i]);
  }
}

}  // namespace

std::vector<OrderedGradient> ordered_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<OrderedGradient> all;
  for_gradients(parameters, [&](std::size_t i, const at::Tensor& parameter) {
    at::Tensor gradient = own_gradient(parameter);
    if (gradient.strides() != parameter.strides())
      gradient = at::empty_like(parameter, gradient.options()).copy_(gradient);
    all.push_back({i, gradient, 0});
  });
  return all;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for_gradients(parameters, [&](std::size_t i, const at::Tensor& parameter) {
    const at::Tensor& gradient = own_gradient(parameter);
    check(gradient.is_non_overlapping_and_dense(),
          "the gradient of parameter {} has gaps or elements that share memory (strides [{}]); "
          "replace it by its contiguous()",
          i, fmt::join(gradient.strides(), ", "));
    all.push_back(gradient);
  });
  return all;
}

void for_blocks(const at::Tensor& gradient, bool writes, const VisitBlock& visit) {
  if (!gradient.is_cpu()) {
    const at::NoGradGuard no_grad;
    const at::Tensor on_host = gradient.detach().cpu();
    for_blocks(on_host, writes, visit);
    if (writes) gradient.detach().copy_(on_host);
    return;
  }
  const Dtype type = to_dtype(gradient.scalar_type());
  auto* const bytes = static_cast<std::byte*>(gradient.data_ptr());
  const std::int64_t count = gradient.numel();
  const std::size_t size = gradient.itemsize();
  at::parallel_for(
      0, (count + kBlock - 1) / kBlock, kBlocksAThread, [&](std::int64_t begin, std::int64_t end) {
        std::array<float, kBlock> widened;
        for (std::int64_t block = begin; block < end; ++block) {
          const std::int64_t length = std::min(kBlock, count - block * kBlock);
          std::byte* const place = bytes + static_cast<std::size_t>(block * kBlock) * size;
          if (type == Dtype::kFloat32) {
            visit(block, reinterpret_cast<float*>(place), length);
            continue;
          }
          widen(type, place, widened.data(), length);
          visit(block, widened.data(), length);
          if (writes) narrow(type, widened.data(), place, length);
        }
      });
}

namespace {

// The number of elements that one thread adds up at a time.
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
