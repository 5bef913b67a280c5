#include "paceline/training/models/one_dnn_product.h"

#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/custom_function.h>

namespace paceline::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

// By boxed values, because the types of optional arguments depend on LibTorch's version.
at::Tensor multiply(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  torch::jit::Stack stack{rows,
                          weight,
                          bias.defined() ? c10::IValue(bias) : c10::IValue(),
                          "none",  // nothing is fused
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

}  // namespace

bool prefers_one_dnn_product() {
  static const bool is_faster = at::hasMKL() && !is_intel() && find_operator().has_value();
  return is_faster;
}

at::Tensor one_dnn_product(const at::Tensor& rows, const at::Tensor& weight,
                           const at::Tensor& bias) {
  if (!at::GradMode::is_enabled()) return multiply(rows, weight, bias);
  return bias.defined() ? Product::apply(rows, weight, bias) : Product::apply(rows, weight);
}

}  // namespace paceline::models
