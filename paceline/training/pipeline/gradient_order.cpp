#include "paceline/training/pipeline/gradient_order.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace paceline {
namespace {

// As autograd does it: the first gradient becomes .grad if nothing else holds its memory, which is
// LibTorch's own: that of a borrowed tensor (loans.h) is another rank's.
void accumulate(const at::Tensor& parameter, at::Tensor gradient) {
  at::NoGradGuard no_gradients;
  at::Tensor& total = parameter.mutable_grad();
  if (total.defined()) {
    total.add_(gradient);
    return;
  }
  const bool is_own = gradient.use_count() == 1 && gradient.storage().use_count() == 1 &&
                      gradient.storage().resizable() && gradient.strides() == parameter.strides();
  total = is_own ? gradient.detach() : at::empty_like(parameter).copy_(gradient);
}

}  // namespace

void GradientOrder::add(int micro_batch, std::vector<at::Tensor> gradients) {
  early_.emplace(micro_batch, std::move(gradients));
  for (auto first = early_.begin(); first != early_.end() && first->first == next_;
       first = early_.begin()) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (first->second[i].defined()) accumulate(parameters_[i], std::move(first->second[i]));
    }
    early_.erase(first);
    ++next_;
  }
}

void GradientOrder::begin_step() {
  early_.clear();
  next_ = 0;
}

}  // namespace paceline
