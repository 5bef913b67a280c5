#pragma once

// A module as the worker that has it serves it to others. Its forward passes run one at a time, in
// the order in which they arrive, because a module has buffers, a mode and members of its own; its
// backward passes (pass.h) run beside them.
//
// Thread safety: forward(), state() and load_state() one at a time, as rpc does for an object; the
// others any.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/training/remote/pass.h"
#include "paceline/training/remote/weights_lock.h"

namespace paceline::remote {

// A tensor and its name in the module ("layer1.0.conv1.weight").
struct NamedTensor {
  std::string name;
  at::Tensor value;
  static auto fields(auto& m) { return std::tie(m.name, m.value); }
};
struct ModuleState {
  std::vector<NamedTensor> tensors;
  static auto fields(auto& m) { return std::tie(m.tensors); }
};

// A module, and its forward() without its type.
struct TypelessModule {
  std::shared_ptr<torch::nn::Module> module{};
  std::function<Tensors(const Tensors& inputs)> forward{};
  // Of the constructor of a ServedModule. Only the worker that has the module can make one: what
  // another worker sends has no fields.
  static auto fields(auto& /*self*/) { return std::tie(); }
};

class ServedModule : public std::enable_shared_from_this<ServedModule> {
 public:
  static constexpr std::string_view kName = "paceline.module";
  using Arguments = TypelessModule;
  explicit ServedModule(const TypelessModule& module);

  ForwardReply forward(const ForwardRequest& request, rpc::Context& context);
  // Copies of parameters and buffers; and the way back, for those that are named.
  ModuleState state(const rpc::Nothing& nothing, rpc::Context& context);
  rpc::Nothing load_state(const ModuleState& state, rpc::Context& context);
  // Says that the constructor has ended.
  rpc::Nothing ready(const rpc::Nothing& nothing) { return nothing; }
  static auto methods() {
    using enum rpc::Effect;
    return std::tuple(rpc::method<&ServedModule::forward>("forward", kOnce),
                      rpc::method<&ServedModule::state>("state", kRepeatable),
                      rpc::method<&ServedModule::load_state>("load_state", kOnce),
                      rpc::method<&ServedModule::ready>("ready", kRepeatable));
  }

  const Tensors& parameters() const { return parameters_; }
  WeightsLock& weights() { return weights_; }

 private:
  at::Tensor to_send(const at::Tensor& output) const;

  const TypelessModule module_;
  const Tensors parameters_;
  const std::vector<NamedTensor> tensors_;  // parameters and buffers
  WeightsLock weights_;
};

// ---- how forward() is called ----

inline void append_outputs(Tensors& all, const at::Tensor& output) { all.push_back(output); }
inline void append_outputs(Tensors& all, const Tensors& outputs) {
  all.insert(all.end(), outputs.begin(), outputs.end());
}
template <class... Outputs>
void append_outputs(Tensors& all, const std::tuple<Outputs...>& outputs) {
  std::apply([&](const auto&... each) { (append_outputs(all, each), ...); }, outputs);
}

[[noreturn]] void refuse_inputs(const torch::nn::Module& module, std::size_t num_inputs);

// forward() of a module that takes one to four tensors, or a list of them, and returns a tensor, a
// list or a tuple.
template <class M>
Tensors call_forward(M& module, const Tensors& in) {
  Tensors all;
  const std::size_t count = in.size();
  if constexpr (requires { module.forward(in[0]); }) {
    if (count == 1) return append_outputs(all, module.forward(in[0])), all;
  }
  if constexpr (requires { module.forward(in[0], in[1]); }) {
    if (count == 2) return append_outputs(all, module.forward(in[0], in[1])), all;
  }
  if constexpr (requires { module.forward(in[0], in[1], in[2]); }) {
    if (count == 3) return append_outputs(all, module.forward(in[0], in[1], in[2])), all;
  }
  if constexpr (requires { module.forward(in[0], in[1], in[2], in[3]); }) {
    if (count == 4) return append_outputs(all, module.forward(in[0], in[1], in[2], in[3])), all;
  }
  if constexpr (requires { append_outputs(all, module.forward(in)); }) {
    return append_outputs(all, module.forward(in)), all;
  }
  refuse_inputs(module, count);
}

template <class M>
TypelessModule typeless(std::shared_ptr<M> module) {
  return {module, [&own = *module](const Tensors& inputs) { return call_forward(own, inputs); }};
}

}  // namespace paceline::remote
