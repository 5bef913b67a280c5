#include "paceline/training/remote/remote_backward.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/remote/served_module.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline::remote {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

edge_list with_anchor(edge_list edges, const at::Tensor& anchor) {
  edges.push_back(torch::autograd::impl::gradient_edge(anchor));
  return edges;
}

// Appends the passes of one graph, skipping nodes that have been seen.
void append_passes_of(const at::Tensor& root, std::unordered_set<Node*>& seen,
                      std::vector<RemoteBackward*>& passes) {
  if (!root.defined() || !root.grad_fn()) return;
  const auto num_before = static_cast<std::ptrdiff_t>(passes.size());
  std::vector<Node*> next = {root.grad_fn().get()};
  while (!next.empty()) {
    Node* const node = next.back();
    next.pop_back();
    if (!seen.insert(node).second) continue;
    if (auto* const pass = dynamic_cast<RemoteBackward*>(node)) passes.push_back(pass);
    for (const auto& edge : node->next_edges()) {
      if (edge.is_valid()) next.push_back(edge.function.get());
    }
  }
  std::sort(passes.begin() + num_before, passes.end(),
            [](const auto* a, const auto* b) { return a->sequence_nr() > b->sequence_nr(); });
}

}  // namespace

Tensors Token::backward(Tensors gradients, bool retains) {
  {
    const std::lock_guard lock(mutex_);
    check(!is_released_,
          "a second backward pass through a module of worker {}: the first one freed the graph; "
          "call backward() with retain_graph",
          owner());
    is_released_ = !retains;
  }
  auto call = pass_.call<&Pass::backward>({.gradients = std::move(gradients), .retains = retains},
                                          options_);
  BackwardReply reply;
  {
    const WeightsLent lent;
    reply = call.get();
  }
  const std::lock_guard lock(mutex_);
  has_gradients_ = true;
  nested_ = std::move(reply.nested);
  return std::move(reply.gradients);
}

void Token::append_passes(std::vector<PassAt>& passes) const {
  const std::lock_guard lock(mutex_);
  if (!has_gradients_) return;
  passes.push_back({pass_.owner(), pass_.number()});
  passes.insert(passes.end(), nested_.begin(), nested_.end());
}

RemoteBackward::RemoteBackward(std::shared_ptr<Token> token, edge_list edges)
    : RemoteBackward(std::move(token), std::move(edges), at::empty({0}).requires_grad_()) {}

RemoteBackward::RemoteBackward(std::shared_ptr<Token> token, edge_list edges, at::Tensor anchor)
    : Node(with_anchor(std::move(edges), anchor)),
      token_(std::move(token)),
      anchor_(std::move(anchor)) {}

variable_list RemoteBackward::apply(variable_list&& gradients) {
  if (at::GradMode::is_enabled()) {
    fail(ErrorCode::kUnsupported, "a module of worker {} has no gradients of gradients",
         token_->owner());
  }
  variable_list result = token_->backward(std::move(gradients), retains_);
  result.resize(num_outputs());  // the gradient of the anchor is undefined
  return result;
}

std::vector<RemoteBackward*> remote_passes(const Tensors& roots) {
  std::unordered_set<Node*> seen;
  std::vector<RemoteBackward*> passes;
  for (const at::Tensor& root : roots) append_passes_of(root, seen, passes);
  return passes;
}

void set_remote_history(Tensors& outputs, const std::vector<std::uint8_t>& require_grad,
                        std::shared_ptr<Token> token, edge_list edges) {
  check(outputs.size() == require_grad.size(),
        "worker {} sent {} outputs, but {} flags that state whether an output requires a gradient",
        token->owner(), outputs.size(), require_grad.size());
  const auto node = make_node<RemoteBackward>(std::move(token), std::move(edges));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (require_grad[i] != 0) torch::autograd::create_gradient_edge(outputs[i], node);
  }
}

}  // namespace paceline::remote
