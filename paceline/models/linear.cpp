#include "paceline/models/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/models/row_products.h"

namespace paceline::models {
namespace {

constexpr std::int64_t kFewRows = 8;
constexpr std::int64_t kGrain = 1 << 15;  // multiplications that are worth another thread

bool is_plain(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided;
}

bool is_for_few_rows(const at::Tensor& input, const at::Tensor& weight) {
  return is_plain(input) && is_plain(weight) && weight.is_contiguous() && weight.dim() == 2 &&
         weight.numel() > 0 && input.dim() > 0 && input.size(-1) == weight.size(1) &&
         input.numel() <= kFewRows * weight.size(1) && !at::GradMode::is_enabled() &&
         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::AutocastCPU);
}

at::Tensor few_rows(const at::Tensor& input, const at::Tensor& weight) {
  const at::Tensor rows = input.contiguous();
  const std::int64_t features = weight.size(1), outputs = weight.size(0);
  auto sizes = input.sizes().vec();
  sizes.back() = outputs;
  at::Tensor results = at::empty(sizes, input.options());
  const std::int64_t num_rows = rows.numel() / features;
  at::parallel_for(0, outputs, kGrain / features + 1, [&](std::int64_t begin, std::int64_t end) {
    multiply_rows(rows.data_ptr<float>(), num_rows, weight.data_ptr<float>(), features, outputs,
                  begin, end, results.data_ptr<float>());
  });
  return results;
}

}  // namespace

at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (is_for_few_rows(input, weight)) {
    at::Tensor results = few_rows(input, weight);
    return bias.defined() ? results.add_(bias) : results;
  }
  return bias.defined() ? at::linear(input, weight, bias) : at::linear(input, weight);
}

}  // namespace paceline::models
