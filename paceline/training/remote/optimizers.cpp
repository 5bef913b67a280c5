#include "paceline/training/remote/optimizers.h"

#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace paceline::remote {

namespace optim = torch::optim;
using Parameters = std::vector<at::Tensor>;

OptimizerPointer SGD::make(Parameters parameters) const {
  return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions(lr)
                                                                 .momentum(momentum)
                                                                 .dampening(dampening)
                                                                 .weight_decay(weight_decay)
                                                                 .nesterov(nesterov));
}

OptimizerPointer Adam::make(Parameters parameters) const {
  return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions(lr)
                                                                  .betas({beta1, beta2})
                                                                  .eps(eps)
                                                                  .weight_decay(weight_decay)
                                                                  .amsgrad(amsgrad));
}

OptimizerPointer AdamW::make(Parameters parameters) const {
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions(lr)
                                                                   .betas({beta1, beta2})
                                                                   .eps(eps)
                                                                   .weight_decay(weight_decay)
                                                                   .amsgrad(amsgrad));
}

OptimizerPointer Adagrad::make(Parameters parameters) const {
  return std::make_unique<optim::Adagrad>(std::move(parameters),
                                          optim::AdagradOptions(lr)
                                              .lr_decay(lr_decay)
                                              .weight_decay(weight_decay)
                                              .initial_accumulator_value(initial_accumulator)
                                              .eps(eps));
}

OptimizerPointer RMSprop::make(Parameters parameters) const {
  return std::make_unique<optim::RMSprop>(std::move(parameters), optim::RMSpropOptions(lr)
                                                                     .alpha(alpha)
                                                                     .eps(eps)
                                                                     .weight_decay(weight_decay)
                                                                     .momentum(momentum)
                                                                     .centered(centered));
}

}  // namespace paceline::remote
