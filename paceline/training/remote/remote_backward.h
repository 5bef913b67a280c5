#pragma once

// The caller's end of a pass through a remote module: a node of its autograd graph, whose backward
// is a call to the owner. The node holds the pass (Token), so the owner keeps it as long as the
// graph exists.
//
// Thread safety: const methods.

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

class Token {
 public:
  Token(rpc::RemoteRef<Pass> pass, rpc::CallOptions options)
      : pass_(std::move(pass)), options_(options) {}
  const std::string& owner() const { return pass_.owner(); }
  // Returns the gradients of the inputs that require them.
  Tensors backward(Tensors gradients, bool retains);
  // Appends this pass and what is nested in it, once a backward pass has been here.
  void append_passes(std::vector<PassAt>& passes) const;

 private:
  const rpc::RemoteRef<Pass> pass_;
  const rpc::CallOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  bool is_released_ = false, has_gradients_ = false;
  std::vector<PassAt> nested_;
};

class RemoteBackward final : public torch::autograd::Node {
 public:
  // The edges lead to the inputs that require a gradient.
  RemoteBackward(std::shared_ptr<Token> token, torch::autograd::edge_list edges);
  const std::shared_ptr<Token>& token() const { return token_; }
  // A leaf behind the node. A backward pass that asks for its gradient, which is undefined, runs
  // the node also if nothing else behind it is asked for.
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

// The passes through remote modules in the graphs of these tensors: one graph after the other, in
// each the latest pass first, as a backward pass comes to them.
std::vector<RemoteBackward*> remote_passes(const Tensors& roots);

// Gives the outputs that require a gradient a history that leads to the inputs over the token.
void set_remote_history(Tensors& outputs, const std::vector<std::uint8_t>& require_grad,
                        std::shared_ptr<Token> token, torch::autograd::edge_list edges);

}  // namespace paceline::remote
