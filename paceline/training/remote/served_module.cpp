#include "paceline/training/remote/served_module.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::remote {
namespace {

// Parameters and buffers.
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

void refuse_inputs(const torch::nn::Module& module, std::size_t num_inputs) {
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
        "of {} inputs {} say whether they "
        "require a gradient",
        request.inputs.size(), request.require_grad.size());
  const at::AutoGradMode with_graph(request.kept != 0);
  Tensors inputs, leaves, roots;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    // Of this graph alone, also if the caller is this worker itself.
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

// Weights may change before an output is sent that lies in their memory.
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
