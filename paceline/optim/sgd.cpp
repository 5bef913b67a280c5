#include "paceline/optim/sgd.h"

#include "paceline/core/check.h"
#include "paceline/optim/kernels.h"

namespace paceline::optim {

Sgd::Sgd(const std::vector<at::Tensor>& parameters, const SgdOptions& options)
    : Optimizer(parameters, options.lr,
                options.momentum > 0 ? std::vector<std::string>{"momentum_buffer"}
                                     : std::vector<std::string>{}),
      options_(options) {
  check(options.momentum >= 0 && options.weight_decay >= 0,
        "sgd: momentum and weight_decay must not be negative");
  check(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
        "sgd: nesterov needs a momentum above 0 and no dampening");
}

void Sgd::update(const Slice& slice) const {
  SgdKernelArguments kernel;
  kernel.lr = static_cast<float>(learning_rate());
  kernel.momentum = static_cast<float>(options_.momentum);
  // A parameter's first step takes the whole gradient as its momentum.
  kernel.gradient_share = slice.step == 1 ? 1.0f : static_cast<float>(1 - options_.dampening);
  kernel.weight_decay = static_cast<float>(options_.weight_decay);
  kernel.nesterov = options_.nesterov;
  sgd_kernel(kernel, slice.parameter, slice.gradient,
             options_.momentum > 0 ? slice.state[0] : nullptr, slice.count);
}

}  // namespace paceline::optim
