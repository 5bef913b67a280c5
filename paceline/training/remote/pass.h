#pragma once

// The messages of a pass through a remote module, and the owner's end of it: the graph of one
// forward pass, kept for the backward pass, and then the gradients of the weights, kept until an
// optimizer takes them. It is an object of the worker that called forward()
// (engine/rpc/remote_ref.h), and goes when that worker lets go of its graph or has not been heard
// of for a lease.
//
// Thread safety: all methods. The calls at a pass run one at a time, beside other passes of the
// same module.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "paceline/engine/rpc/remote_ref.h"
#include "paceline/training/remote/tensor_field.h"

namespace paceline::remote {

class ServedModule;
class Token;
using Tensors = std::vector<at::Tensor>;

// LibTorch's errors without the backtrace, which means nothing to another worker.
template <class Body>
auto plain_errors(Body body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kInvalid, error.what_without_backtrace());
  }
}

struct ForwardRequest {
  Tensors inputs;
  std::vector<std::uint8_t> require_grad;  // of each input
  bool is_training = true;
  rpc::ObjectNumber kept = 0;  // of the pass; 0: no gradients are wanted
  static auto fields(auto& m) { return std::tie(m.inputs, m.require_grad, m.is_training, m.kept); }
};
struct ForwardReply {
  Tensors outputs;
  std::vector<std::uint8_t> require_grad;  // of each output; empty if no pass was kept
  static auto fields(auto& m) { return std::tie(m.outputs, m.require_grad); }
};

struct BackwardRequest {
  Tensors gradients;  // of the outputs that require them; undefined: zero
  bool retains = false;
  static auto fields(auto& m) { return std::tie(m.gradients, m.retains); }
};
// A pass through a module of a third worker that was a part of this one.
struct PassAt {
  std::string owner;
  rpc::ObjectNumber number = 0;
  static auto fields(auto& m) { return std::tie(m.owner, m.number); }
};
struct BackwardReply {
  Tensors gradients;           // of the inputs that require them
  std::vector<PassAt> nested;  // in the order in which one process would add up their gradients
  static auto fields(auto& m) { return std::tie(m.gradients, m.nested); }
};

class Pass {
 public:
  static constexpr std::string_view kName = "paceline.pass";
  // Inputs and outputs are those that require a gradient.
  Pass(std::shared_ptr<ServedModule> module, Tensors inputs, Tensors outputs);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // The module and all that is nested in it. Error(kInvalid) if the graph was not retained.
  BackwardReply backward(const BackwardRequest& request, rpc::Context& context);
  static auto methods() {
    return std::tuple(rpc::method<&Pass::backward>("backward", rpc::Effect::kOnce));
  }

  // The gradient of a parameter, which the pass has no more; undefined if it took no part.
  at::Tensor take_gradient(const at::Tensor& parameter);

 private:
  Tensors run_backward(const BackwardRequest& request, const Tensors& anchors);

  const std::shared_ptr<ServedModule> module_;
  const Tensors parameters_;
  Tensors inputs_, outputs_;                    // of the graph
  std::vector<std::shared_ptr<Token>> nested_;  // once the first backward pass has looked for them

  std::mutex mutex_;  // guards the gradients
  std::unordered_map<const at::TensorImpl*, at::Tensor> gradients_;
};

// The passes that the workers of this process keep for others.
std::size_t num_kept_passes();

}  // namespace paceline::remote
