#include "paceline/training/optim/divided_gradient.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {
namespace {

using torch::autograd::AutogradMeta;

class DividedGradient : public AutogradMeta {
 public:
  DividedGradient(c10::TensorImpl* parameter, AutogradMeta& before)
      : AutogradMeta(parameter, before.requires_grad_), parameter_(parameter) {
    name_ = std::move(before.name_);
    grad_ = std::move(before.grad_);
    grad_accumulator_ = before.grad_accumulator_;
    hooks_ = std::move(before.hooks_);
    cpp_hooks_list_ = std::move(before.cpp_hooks_list_);
    take_later_hooks<AutogradMeta>(*this, before);
  }

  const at::Tensor& grad() const override {
    if (!grad_.defined() && requires_grad_ && Optimizer::divides_gradient_of(parameter_)) {
      fail(ErrorCode::kInvalid,
           "the gradient of this parameter is divided among the ranks (fully_shard): between "
           "backward passes .grad has nothing to read. Call paceline::optim::clip_grad_norm, "
           "clip_grad_value or grad_norm with the optimizer instead of LibTorch's functions with "
           "parameters, and step() of the optimizer that was given to fully_shard()");
    }
    return grad_;
  }

 private:
  // Versions from 2.1 on have these.
  template <class Meta>
  static void take_later_hooks(Meta& to, Meta& from) {
    if constexpr (requires { from.post_acc_grad_hooks_; })
      to.post_acc_grad_hooks_ = std::move(from.post_acc_grad_hooks_);
  }

  const c10::TensorImpl* const parameter_;
};

}  // namespace

void guard_divided_gradient(const at::Tensor& parameter) {
  auto* const before = torch::autograd::impl::get_autograd_meta(parameter);
  if (before == nullptr) return;  // it has never required a gradient
  auto* const impl = parameter.unsafeGetTensorImpl();
  impl->set_autograd_meta(std::make_unique<DividedGradient>(impl, *before));
}

}  // namespace paceline::optim
