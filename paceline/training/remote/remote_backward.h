#pragma once

// The caller's end of a pass through a remote module: a node of the caller's autograd graph, whose
// backward pass is a call to the owner. The node refers to the pass (Token), so the owner keeps the
// pass as long as the graph exists.
//
// Thread safety: const methods may be called from any thread.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "paceline/training/remote/served_module.h"

namespace paceline::remote {

// The caller's reference to a pass.
class Token {
 public:
  Token(rpc::RemoteRef<Pass> pass, rpc::CallOptions options)
      : pass_(std::move(pass)), options_(options) {}
  const std::string& owner() const { return pass_.owner(); }
  // Calls the owner's backward(). Returns the gradients of the inputs that require them.
  Tensors backward(Tensors gradients, bool retains);
  // Appends this pass and the passes nested in it, if the backward pass of this pass has run.
  void append_passes(std::vector<PassAt>& passes) const;

 private:
  const rpc::RemoteRef<Pass> pass_;
  const rpc::CallOptions options_;
  mutable std::mutex mutex_;  // guards the members below
  bool is_released_ = false, has_gradients_ = false;
  std::vector<PassAt> nested_;
};

class RemoteBackward final : public torch::autograd::Node {
 public:
  // The edges lead to the inputs that require a gradient.
  RemoteBackward(std::shared_ptr<Token> token, torch::autograd::edge_list edges);
  const std::shared_ptr<Token>& token() const { return token_; }
  // An input of the node that exists only so that torch::autograd::grad() can be made to run the
  // node even if no other input requires a gradient. Its own gradient is undefined.
  const at::Tensor& anchor() const { return anchor_; }

  std::string name() const override { return "RemoteBackward"; }
  void will_release_variables() override { retains_ = false; }

 private:
  RemoteBackward(std::shared_ptr<Token> token, torch::autograd::edge_list edges, at::Tensor anchor);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

  const std::shared_ptr<Token> token_;
  const at::Tensor anchor_;
  std::atomic<bool> retains_{true};
};

// The passes through remote modules in the graphs of these tensors: one graph after another; within
// a graph the latest pass comes first, which is the order of a backward pass.
std::vector<RemoteBackward*> remote_passes(const Tensors& roots);

// Connects the outputs that require a gradient to the inputs through a node that holds the token.
void set_remote_history(Tensors& outputs, const std::vector<std::uint8_t>& require_grad,
                        std::shared_ptr<Token> token, torch::autograd::edge_list edges);

}  // namespace paceline::remote
