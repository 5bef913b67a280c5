#include "paceline/training/remote/served_optimizer.h"

#include <algorithm>
#include <set>

#include "paceline/engine/core/check.h"
#include "paceline/training/remote/served_module.h"
#include "paceline/training/remote/weights_lock.h"

namespace paceline::remote {

ModulesOptimizer::ModulesOptimizer(const std::vector<rpc::ObjectNumber>& modules,
                                   const rpc::Context& context, const Make& make) {
  for (const rpc::ObjectNumber number : modules) {
    modules_.push_back(rpc::find_object<ServedModule>(context, number));
    check(modules_.back() != nullptr, "a module of the optimizer does not exist (any more)");
  }
  std::sort(modules_.begin(), modules_.end());
  modules_.erase(std::unique(modules_.begin(), modules_.end()), modules_.end());
  std::set<const at::TensorImpl*> seen;
  std::vector<at::Tensor> stepped;
  for (const auto& module : modules_) {
    for (const at::Tensor& parameter : module->parameters()) {
      if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      parameters_.push_back({parameter, parameter.variable_data()});
      stepped.push_back(parameters_.back().stepped);
    }
  }
  check(!parameters_.empty(), "no parameter of the optimizer's modules requires a gradient");
  optimizer_ = plain_errors([&] { return make(std::move(stepped)); });
}

void ModulesOptimizer::step(const StepRequest& request, rpc::Context& context) {
  std::vector<std::shared_ptr<Pass>> passes;
  for (const rpc::ObjectNumber number : request.passes) {
    passes.push_back(rpc::find_object<Pass>(context, number));
    check(passes.back() != nullptr,
          "a pass of the step is gone: keep the losses until step() has returned");
  }
  std::vector<std::unique_ptr<WeightsInStep>> in_step;
  for (const auto& module : modules_) {
    in_step.push_back(std::make_unique<WeightsInStep>(module->weights(), context.deadline()));
  }
  bool has_any = false;
  for (Parameter& parameter : parameters_) {
    at::Tensor sum;
    for (const auto& pass : passes) {
      const at::Tensor gradient = pass->take_gradient(parameter.own);
      if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
    }
    has_any = has_any || sum.defined();
    if (!parameter.stepped.is_alias_of(parameter.own)) {
      parameter.stepped.set_data(parameter.own.variable_data());
    }
    parameter.stepped.mutable_grad() = sum;
  }
  check(has_any, "the passes have no gradients for these parameters: they have been applied");
  if (request.learning_rate) {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(*request.learning_rate);
  }
  plain_errors([&] { optimizer_->step(); });
  for (Parameter& parameter : parameters_) parameter.stepped.mutable_grad() = at::Tensor();
}

}  // namespace paceline::remote
