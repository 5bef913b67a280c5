#include "paceline/training/remote/pass.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/remote/remote_backward.h"
#include "paceline/training/remote/served_module.h"

namespace paceline::remote {
namespace {

std::atomic<std::size_t> num_passes{0};

Tensors trainable(const Tensors& parameters) {
  Tensors all;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) all.push_back(parameter);
  }
  return all;
}

}  // namespace

std::size_t num_kept_passes() { return num_passes; }

Pass::Pass(std::shared_ptr<ServedModule> module, Tensors inputs, Tensors outputs)
    : module_(std::move(module)),
      parameters_(trainable(module_->parameters())),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)) {
  ++num_passes;
}

Pass::~Pass() { --num_passes; }

BackwardReply Pass::backward(const BackwardRequest& request, rpc::Context& context) {
  check(!outputs_.empty(), "the graph of the pass is gone: it was not retained");
  check(request.gradients.size() == outputs_.size(), "{} gradients came for {} outputs",
        request.gradients.size(), outputs_.size());
  const auto nested = remote_passes(outputs_);
  Tensors anchors;
  for (const auto* const pass : nested) anchors.push_back(pass->anchor());
  if (nested_.empty()) {
    for (const auto* const pass : nested) nested_.push_back(pass->token());
  }
  const WeightsInUse in_use(module_->weights(), context.deadline());
  Tensors found = run_backward(request, anchors);
  BackwardReply reply;
  reply.gradients.assign(found.begin(),
                         found.begin() + static_cast<std::ptrdiff_t>(inputs_.size()));
  if (!request.retains) {
    outputs_.clear();
    inputs_.clear();
  }
  for (const auto& token : nested_) token->append_passes(reply.nested);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = found[reply.gradients.size() + i];
    if (!gradient.defined()) continue;
    at::Tensor& sum = gradients_[parameters_[i].unsafeGetTensorImpl()];
    sum = sum.defined() ? sum + gradient : gradient;
  }
  return reply;
}

// Of the inputs and then of the parameters.
Tensors Pass::run_backward(const BackwardRequest& request, const Tensors& anchors) {
  Tensors roots, gradients, variables = inputs_;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (!request.gradients[i].defined()) continue;
    roots.push_back(outputs_[i]);
    gradients.push_back(request.gradients[i]);
  }
  variables.insert(variables.end(), parameters_.begin(), parameters_.end());
  variables.insert(variables.end(), anchors.begin(), anchors.end());
  if (roots.empty() || variables.empty()) return Tensors(variables.size());
  return plain_errors([&] {
    return torch::autograd::grad(roots, variables, gradients, request.retains,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  });
}

at::Tensor Pass::take_gradient(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex_);
  auto node = gradients_.extract(parameter.unsafeGetTensorImpl());
  return node.empty() ? at::Tensor() : std::move(node.mapped());
}

}  // namespace paceline::remote
