#include "paceline/training/remote/distributed_optimizer.h"

#include <algorithm>
#include <map>

#include "paceline/engine/core/check.h"
#include "paceline/training/remote/remote_backward.h"

namespace paceline::remote {
namespace {

const char* describe(const StepError::Outcome& outcome) {
  if (outcome.text.empty()) return "took the step";
  switch (outcome.executed) {
    case rpc::Executed::kNo:
      return "did not take the step";
    case rpc::Executed::kUnknown:
      return "may have taken the step";
    case rpc::Executed::kYes:
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
    StepRequest request{.passes = {}, .learning_rate = learning_rate_};
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
      outcomes.push_back({owners_[owner].name, rpc::Executed::kYes, ""});
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
