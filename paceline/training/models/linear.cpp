#include "paceline/training/models/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/training/models/one_dnn_product.h"
#include "paceline/training/models/row_products.h"

namespace paceline::models {
namespace {

constexpr std::int64_t kFewRows = 8;
constexpr std::int64_t kGrain = 1 << 15;  // multiplications that are worth another thread

bool is_plain(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided && tensor.numel() > 0;
}

// Of float32 whose sizes fit, outside of autocast: what the ways below can multiply.
bool is_ordinary(const at::Tensor& input, const at::Tensor& weight) {
  return is_plain(input) && is_plain(weight) && weight.dim() == 2 && weight.is_contiguous() &&
         input.dim() > 0 && input.size(-1) == weight.size(1) &&
         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::AutocastCPU);
}

at::Tensor few_rows(const at::Tensor& rows, const at::Tensor& weight) {
  const std::int64_t features = weight.size(1), outputs = weight.size(0);
  at::Tensor results = at::empty({rows.size(0), outputs}, rows.options());
  at::parallel_for(0, outputs, kGrain / features + 1, [&](std::int64_t begin, std::int64_t end) {
    multiply_rows(rows.data_ptr<float>(), rows.size(0), weight.data_ptr<float>(), features, outputs,
                  begin, end, results.data_ptr<float>());
  });
  return results;
}

}  // namespace

at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (is_ordinary(input, weight)) {
    auto sizes = input.sizes().vec();
    sizes.back() = weight.size(0);
    const at::Tensor rows = input.reshape({-1, weight.size(1)}).contiguous();
    if (rows.size(0) <= kFewRows && !at::GradMode::is_enabled()) {
      at::Tensor results = few_rows(rows, weight).view(sizes);
      return bias.defined() ? results.add_(bias) : results;
    }
    if (prefers_one_dnn_product()) return one_dnn_product(rows, weight, bias).view(sizes);
  }
  return bias.defined() ? at::linear(input, weight, bias) : at::linear(input, weight);
}

}  // namespace paceline::models
