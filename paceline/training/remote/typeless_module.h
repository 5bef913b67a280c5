#pragma once

// Modules whose type has been erased, so that functions without templates can serve them.

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace paceline::remote {

using Tensors = std::vector<at::Tensor>;

namespace detail {

// A module whose type has been erased, with its forward() as a function of lists of tensors.
struct TypelessModule {
  std::shared_ptr<torch::nn::Module> module{};
  std::function<Tensors(const Tensors& inputs)> forward{};
  // These are the arguments of ServedModule's constructor. Only the worker that has the module can
  // make them: in a message from another worker they have no fields, and so no module.
  static auto fields(auto& /*self*/) { return std::tie(); }
};

inline void append_outputs(Tensors& all, const at::Tensor& output) { all.push_back(output); }
inline void append_outputs(Tensors& all, const Tensors& outputs) {
  all.insert(all.end(), outputs.begin(), outputs.end());
}
template <class... Outputs>
void append_outputs(Tensors& all, const std::tuple<Outputs...>& outputs) {
  std::apply([&](const auto&... each) { (append_outputs(all, each), ...); }, outputs);
}

[[noreturn]] void refuse_inputs(const torch::nn::Module& module, std::size_t num_inputs);

// Calls forward() of a module that takes one to four tensors, or a list of tensors, and returns a
// tensor, a list or a tuple.
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

}  // namespace detail

}  // namespace paceline::remote
