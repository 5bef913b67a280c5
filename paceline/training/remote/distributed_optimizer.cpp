#include "paceline/training/remote/distributed_optimizer.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/remote/remote_backward.h"
#include "paceline/training/remote/served_module.h"

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
  return std::make_unique<optim::Adam>(
      std::move(parameters),
      optim::AdamOptions(lr).betas(betas).eps(eps).weight_decay(weight_decay).amsgrad(amsgrad));
}

OptimizerPointer AdamW::make(Parameters parameters) const {
  return std::make_unique<optim::AdamW>(
      std::move(parameters),
      optim::AdamWOptions(lr).betas(betas).eps(eps).weight_decay(weight_decay).amsgrad(amsgrad));
}

OptimizerPointer Adagrad::make(Parameters parameters) const {
  return std::make_unique<optim::Adagrad>(std::move(parameters),
                                          optim::AdagradOptions(lr)
                                              .lr_decay(lr_decay)
                                              .weight_decay(weight_decay)
                                              .initial_accumulator_value(initial_accumulator_value)
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

detail::ModulesOptimizer::ModulesOptimizer(const std::vector<rpc::ObjectNumber>& modules,
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

void detail::ModulesOptimizer::step(const StepRequest& request, rpc::Context& context) {
  std::vector<std::shared_ptr<Pass>> passes;
  for (const rpc::ObjectNumber number : request.passes) {
    passes.push_back(rpc::find_object<Pass>(context, number));
    check(passes.back() != nullptr,
          "a pass of the step was destroyed: keep the losses until step() has returned");
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
  check(has_any,
        "the passes have no gradients left for these parameters: all have been applied by an "
        "earlier step()");
  if (request.learning_rate) {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(*request.learning_rate);
  }
  plain_errors([&] { optimizer_->step(); });
  for (Parameter& parameter : parameters_) parameter.stepped.mutable_grad() = at::Tensor();
}

namespace {

const char* describe(const StepError::Outcome& outcome) {
  if (outcome.text.empty()) return "took the step";
  switch (outcome.executed) {
    case rpc::CallError::Executed::kNo:
      return "did not take the step";
    case rpc::CallError::Executed::kUnknown:
      return "may have taken the step";
    case rpc::CallError::Executed::kYes:
      break;
  }
  return "failed in the step";
}

[[noreturn]] void fail_step(ErrorCode code, std::vector<StepError::Outcome> outcomes) {
  std::string message = "step of a DistributedOptimizer:";
  for (const auto& outcome : outcomes) {
    message += fmt::format(" worker {} {}{}{};", outcome.owner, describe(outcome),
                           outcome.text.empty() ? "" : ": ", outcome.text);
  }
  message.pop_back();
  throw StepError(code, message, std::move(outcomes));
}

}  // namespace

std::vector<DistributedOptimizer::Modules> DistributedOptimizer::by_owner(
    const std::vector<RemoteModule>& modules) {
  std::vector<Modules> all;
  for (const RemoteModule& module : modules) {
    check(!module.is_empty() && module->reference(),
          "DistributedOptimizer: a RemoteModule refers to nothing");
    const auto& reference = module->reference();
    auto found = std::find_if(all.begin(), all.end(), [&](const Modules& of_owner) {
      return of_owner.owner == reference.owner();
    });
    if (found == all.end()) found = all.insert(found, {reference.owner(), {}});
    found->numbers.push_back(reference.number());
  }
  return all;
}

void DistributedOptimizer::step(const std::vector<at::Tensor>& losses) {
  std::vector<PassAt> passes;
  for (const RemoteBackward* const pass : remote_passes(losses)) {
    pass->token()->append_passes(passes);
  }
  struct Running {
    std::size_t owner = 0;
    rpc::Future<rpc::Nothing> reply;
  };
  ErrorCode code = ErrorCode::kInvalid;
  std::vector<StepError::Outcome> outcomes;
  const auto failed = [&](const std::string& owner, const rpc::CallError& error) {
    code = error.code();
    outcomes.push_back({owner, error.executed(), error.what()});
  };
  std::vector<Running> running;
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    detail::StepRequest request{.passes = {}, .learning_rate = learning_rate_};
    for (const PassAt& pass : passes) {
      if (pass.owner == owners_[i].name) request.passes.push_back(pass.number);
    }
    if (request.passes.empty()) continue;
    try {
      running.push_back({i, owners_[i].step(std::move(request))});
    } catch (const rpc::CallError& error) {
      failed(owners_[i].name, error);
    }
  }
  const bool has_local = std::any_of(local_.begin(), local_.end(),
                                     [](const at::Tensor& each) { return each.grad().defined(); });
  check(has_local || !running.empty() || !outcomes.empty(),
        "step: the losses have no gradients for the optimizer's parameters; call backward() first");
  bool has_failed = !outcomes.empty();
  for (auto& [owner, reply] : running) {
    try {
      reply.get();
      outcomes.push_back({owners_[owner].name, rpc::CallError::Executed::kYes, ""});
    } catch (const rpc::CallError& error) {
      has_failed = true;
      failed(owners_[owner].name, error);
    }
  }
  if (has_failed) fail_step(code, std::move(outcomes));
  step_local();
}

void DistributedOptimizer::step_local() {
  if (!optimizer_) return;
  if (learning_rate_) {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(*learning_rate_);
  }
  optimizer_->step();
  for (at::Tensor& parameter : local_) parameter.mutable_grad() = at::Tensor();
}

}  // namespace paceline::remote
