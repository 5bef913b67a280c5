#include "paceline/training/remote/served_module.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/remote/remote_backward.h"

namespace paceline::remote {

namespace {

thread_local WeightsLock* lock_of_this_thread = nullptr;  // held by this thread's pass

}  // namespace

bool WeightsLock::begin_pass(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool is_free = changed_.wait_until(
      lock, deadline.moment(), [this] { return !is_stepping_ && num_waiting_steps_ == 0; });
  if (is_free) ++num_passes_;
  return is_free;
}

void WeightsLock::end_pass() {
  const std::lock_guard lock(mutex_);
  if (--num_passes_ == 0) changed_.notify_all();
}

bool WeightsLock::begin_step(Deadline deadline) {
  std::unique_lock lock(mutex_);
  ++num_waiting_steps_;
  const bool is_free = changed_.wait_until(lock, deadline.moment(),
                                           [this] { return !is_stepping_ && num_passes_ == 0; });
  --num_waiting_steps_;
  if (is_free) {
    is_stepping_ = true;
  } else {
    changed_.notify_all();
  }
  return is_free;
}

void WeightsLock::end_step() {
  const std::lock_guard lock(mutex_);
  is_stepping_ = false;
  changed_.notify_all();
}

WeightsInUse::WeightsInUse(WeightsLock& lock, Deadline deadline)
    : lock_(lock), outer_(std::exchange(lock_of_this_thread, &lock)) {
  if (lock_.begin_pass(deadline)) return;
  lock_of_this_thread = outer_;
  fail(ErrorCode::kTimeout, "an optimizer's step on these weights did not end in time");
}

WeightsInUse::~WeightsInUse() {
  lock_.end_pass();
  lock_of_this_thread = outer_;
}

WeightsInStep::WeightsInStep(WeightsLock& lock, Deadline deadline) : lock_(lock) {
  if (!lock.begin_step(deadline)) {
    fail(ErrorCode::kTimeout, "passes were still computing with the weights at the deadline");
  }
}

WeightsLent::WeightsLent() : lock_(std::exchange(lock_of_this_thread, nullptr)) {
  if (lock_ != nullptr) lock_->end_pass();
}

WeightsLent::~WeightsLent() {
  if (lock_ == nullptr) return;
  lock_->begin_pass(Deadline::never());  // needs no deadline, because a step only computes
  lock_of_this_thread = lock_;
}

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
  check(!outputs_.empty(), "the graph of the pass was freed, because it was not retained");
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

// Returns the gradients of the inputs, then those of the parameters.
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

namespace {

// Returns the parameters and buffers of a module.
std::vector<NamedTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> all;
  for (const auto& each : module.named_parameters()) all.push_back({each.key(), each.value()});
  for (const auto& each : module.named_buffers()) all.push_back({each.key(), each.value()});
  return all;
}

const std::shared_ptr<torch::nn::Module>& existing(const TypelessModule& module) {
  check(module.module != nullptr, "only the worker that has a module can share it: share()");
  return module.module;
}

}  // namespace

void detail::refuse_inputs(const torch::nn::Module& module, std::size_t num_inputs) {
  fail(ErrorCode::kInvalid, "forward() of {} does not take {} tensors", module.name(), num_inputs);
}

ServedModule::ServedModule(const TypelessModule& module)
    : module_(module),
      parameters_(existing(module)->parameters()),
      tensors_(tensors_of(*module.module)) {}

ForwardReply ServedModule::forward(const ForwardRequest& request, rpc::Context& context) {
  const WeightsInUse in_use(weights_, context.deadline());
  torch::nn::Module& module = *module_.module;
  if (module.is_training() != request.is_training) module.train(request.is_training);
  check(request.inputs.size() == request.require_grad.size(),
        "the request has {} inputs, but {} flags that state whether an input requires a gradient",
        request.inputs.size(), request.require_grad.size());
  const at::AutoGradMode with_graph(request.kept != 0);
  Tensors inputs, leaves, roots;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    // Inputs are detached from other graphs, because the caller may be this worker itself.
    const at::Tensor& input = request.inputs[i];
    inputs.push_back(input.defined() ? input.detach() : input);
    if (request.kept == 0 || request.require_grad[i] == 0) continue;
    inputs.back().requires_grad_();
    leaves.push_back(inputs.back());
  }
  ForwardReply reply;
  for (const at::Tensor& output : plain_errors([&] { return module_.forward(inputs); })) {
    const bool requires_grad = output.defined() && output.requires_grad();
    if (requires_grad) roots.push_back(output);
    reply.require_grad.push_back(requires_grad ? 1 : 0);
    reply.outputs.push_back(to_send(output));
  }
  if (roots.empty() || request.kept == 0) {
    reply.require_grad.clear();
    return reply;
  }
  rpc::keep_object(context, request.kept,
                   std::make_shared<Pass>(shared_from_this(), std::move(leaves), std::move(roots)));
  return reply;
}

// Copies an output that shares the memory of a weight, because the weight may change before the
// output is sent.
at::Tensor ServedModule::to_send(const at::Tensor& output) const {
  if (!output.defined()) return output;
  const at::Tensor plain = output.detach();
  for (const NamedTensor& weight : tensors_) {
    if (weight.value.defined() && plain.is_alias_of(weight.value)) return plain.clone();
  }
  return plain;
}

ModuleState ServedModule::state(const rpc::Nothing& /*nothing*/, rpc::Context& context) {
  const WeightsInUse in_use(weights_, context.deadline());
  ModuleState state{tensors_};
  for (NamedTensor& each : state.tensors) each.value = each.value.detach().clone();
  return state;
}

rpc::Nothing ServedModule::load_state(const ModuleState& state, rpc::Context& context) {
  const WeightsInStep in_step(weights_, context.deadline());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const NamedTensor& given : state.tensors) {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const NamedTensor& each) {
      return each.name == given.name;
    });
    check(found != tensors_.end(), "the module has no tensor named '{}'", given.name);
    check(given.value.defined() && found->value.sizes() == given.value.sizes(),
          "'{}' has other sizes in the module", given.name);
    copies.emplace_back(found->value, given.value);
  }
  const at::NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_(from);
  return {};
}

}  // namespace paceline::remote
