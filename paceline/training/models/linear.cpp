#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/models/row_products.h"

namespace paceline::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Multiplies float32 matrices with oneDNN, which is built into LibTorch along with another library
// for products. In PyTorch's wheels the other library is MKL, which uses AVX-512 only on Intel's
// processors; on others oneDNN's product is twice as fast (benchmarks/README.md). LibTorch's
// operator for it, mkldnn::_linear_pointwise, has no backward pass; this function adds one, which
// is itself differentiable.
//
// [rows, features] times the transposed [outputs, features], plus [outputs] or undefined -> [rows,
// outputs]. Requires: prefers_one_dnn_product(); float32 on the CPU; each matrix, or its transpose,
// is contiguous.
at::Tensor one_dnn_product(const at::Tensor& rows, const at::Tensor& weight,
                           const at::Tensor& bias = {});

const std::optional<c10::OperatorHandle>& find_operator() {
  static const auto found = []() -> std::optional<c10::OperatorHandle> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema) return {};
    return *schema;
  }();
  return found;
}

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

// Calls the operator with boxed values, because the types of its optional arguments depend on
// LibTorch's version.
at::Tensor multiply(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  torch::jit::Stack stack{rows,
                          weight,
                          bias.defined() ? c10::IValue(bias) : c10::IValue(),
                          "none",  // no operation is fused
                          c10::impl::GenericList(c10::OptionalType::create(c10::NumberType::get())),
                          c10::IValue()};
  find_operator()->callBoxed(&stack);
  return stack.front().toTensor();
}

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const at::Tensor& bias = {}) {
    context->save_for_backward({rows, weight});
    context->saved_data["has_bias"] = bias.defined();
    return multiply(rows, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor gradient = gradients[0].contiguous();
    const bool has_bias = context->saved_data["has_bias"].toBool();
    variable_list results(has_bias ? 3 : 2);
    if (context->needs_input_grad(0)) results[0] = one_dnn_product(gradient, saved[1].t());
    if (context->needs_input_grad(1)) results[1] = one_dnn_product(gradient.t(), saved[0].t());
    if (has_bias && context->needs_input_grad(2)) results[2] = gradient.sum(0);
    return results;
  }
};

// Whether oneDNN's operator exists and is faster than LibTorch's product. It is faster if LibTorch
// uses MKL on a processor that is not from Intel.
bool prefers_one_dnn_product() {
  static const bool is_faster = at::hasMKL() && !is_intel() && find_operator().has_value();
  return is_faster;
}

at::Tensor one_dnn_product(const at::Tensor& rows, const at::Tensor& weight,
                           const at::Tensor& bias) {
  if (!at::GradMode::is_enabled()) return multiply(rows, weight, bias);
  return bias.defined() ? Product::apply(rows, weight, bias) : Product::apply(rows, weight);
}

constexpr std::int64_t kFewRows = 8;
constexpr std::int64_t kGrain = 1 << 15;  // the fewest multiplications for another thread

bool is_plain(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided && tensor.numel() > 0;
}

// Whether the products of this file can be used for these tensors: float32 with matching sizes,
// outside of autocast.
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

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  return apply_linear(input, weight, bias);
}

}  // namespace paceline::models
