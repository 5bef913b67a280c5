#include "paceline/training/remote/remote_module.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/remote/distributed_optimizer.h"
#include "paceline/training/remote/remote_backward.h"
#include "paceline/training/remote/served_module.h"

namespace paceline::remote {

struct RemoteModuleImpl::RunningForward::Impl {
  rpc::Future<ForwardReply> reply;
  // Set if gradients are needed.
  std::shared_ptr<Token> token{};
  torch::autograd::edge_list edges{};
};

RemoteModuleImpl::RunningForward::RunningForward(std::shared_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

Tensors RemoteModuleImpl::RunningForward::get() {
  ForwardReply reply;
  {
    const WeightsLent lent;
    reply = impl_->reply.get();
  }
  // If the caller is also the owner, these are the tensors of the pass: detach them from its graph.
  for (at::Tensor& output : reply.outputs) output = output.defined() ? output.detach() : output;
  if (!reply.require_grad.empty() && impl_->token) {
    set_remote_history(reply.outputs, reply.require_grad, std::move(impl_->token),
                       std::move(impl_->edges));
  }
  return std::move(reply.outputs);
}

RemoteModuleImpl::RemoteModuleImpl(rpc::RemoteRef<ServedModule> reference)
    : reference_(std::move(reference)) {}

RemoteModuleImpl::RunningForward RemoteModuleImpl::start(Tensors inputs) const {
  ForwardRequest request{.is_training = is_training()};
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    const bool requires_grad = input.defined() && input.requires_grad();
    request.require_grad.push_back(requires_grad ? 1 : 0);
    if (requires_grad) edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  request.inputs = std::move(inputs);
  if (!at::GradMode::is_enabled()) {
    auto reply = reference_.call<&ServedModule::forward>(std::move(request), options_);
    return RunningForward(
        std::shared_ptr<RunningForward::Impl>(new RunningForward::Impl{std::move(reply)}));
  }
  auto [reply, pass] =
      reference_.call_and_keep<&ServedModule::forward, Pass>(std::move(request), options_);
  auto token = std::make_shared<Token>(std::move(pass), options_);
  return RunningForward(std::shared_ptr<RunningForward::Impl>(
      new RunningForward::Impl{std::move(reply), std::move(token), std::move(edges)}));
}

Tensors RemoteModuleImpl::forward_all(Tensors inputs) const {
  return start(std::move(inputs)).get();
}

at::Tensor RemoteModuleImpl::forward(const at::Tensor& input) {
  Tensors outputs = forward_all({input});
  check(outputs.size() == 1, "a module of worker {} returned {} tensors; use forward_all()",
        owner(), outputs.size());
  return std::move(outputs.front());
}

std::map<std::string, at::Tensor> RemoteModuleImpl::state() const {
  std::map<std::string, at::Tensor> all;
  for (auto& [name, value] : reference_.call<&ServedModule::state>({}, options_).get().tensors)
    all.emplace(std::move(name), std::move(value));
  return all;
}

void RemoteModuleImpl::load_state(const std::map<std::string, at::Tensor>& tensors) const {
  ModuleState state;
  for (const auto& [name, value] : tensors) state.tensors.push_back({name, value});
  reference_.call<&ServedModule::load_state>(std::move(state), options_).get();
}

void serve_modules(rpc::Workers& workers) {
  workers.serve<ServedModule>();
  workers.serve<Pass>();
  serve_optimizer<SGD>(workers);
  serve_optimizer<Adam>(workers);
  serve_optimizer<AdamW>(workers);
  serve_optimizer<Adagrad>(workers);
  serve_optimizer<RMSprop>(workers);
}

RemoteModule detail::share(rpc::Workers& workers, TypelessModule module) {
  check(module.module != nullptr, "{}: share: there is no module", workers.name());
  auto reference = workers.create<ServedModule>(workers.name(), std::move(module));
  reference.call<&ServedModule::ready>().get();
  return RemoteModule(std::make_shared<RemoteModuleImpl>(std::move(reference)));
}

}  // namespace paceline::remote

namespace paceline::rpc::detail {

using Reference = RemoteRef<remote::ServedModule>;

void FieldCodec<remote::RemoteModule>::write(MessageWriter& out,
                                             const remote::RemoteModule& module) {
  FieldCodec<Reference>::write(out, module.is_empty() ? Reference() : module->reference());
}

void FieldCodec<remote::RemoteModule>::read(MessageReader& in, remote::RemoteModule& module) {
  Reference reference;
  FieldCodec<Reference>::read(in, reference);
  module = remote::RemoteModule(std::make_shared<remote::RemoteModuleImpl>(std::move(reference)));
}

}  // namespace paceline::rpc::detail
