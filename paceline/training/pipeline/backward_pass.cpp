#include "paceline/training/pipeline/backward_pass.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/training/tensor/tensor_marks.h"

namespace paceline {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using Numbers = std::unordered_map<Node*, std::size_t>;

edge_list edges_of(const std::vector<at::Tensor>& tensors) {
  edge_list edges;
  for (const at::Tensor& tensor : tensors)
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  return edges;
}

// Returns an edge to every node that is reachable from `roots`, each after the nodes to which it
// leads.
edge_list post_order(const edge_list& roots) {
  edge_list ended;
  std::unordered_set<Node*> seen;
  std::vector<std::pair<Edge, std::size_t>> path;
  const auto visit = [&](const Edge& edge) {
    if (edge.is_valid() && seen.insert(edge.function.get()).second) path.emplace_back(edge, 0);
  };
  for (const Edge& root : roots) {
    visit(root);
    while (!path.empty()) {
      auto& [edge, next] = path.back();
      if (next < edge.function->num_outputs()) {
        visit(edge.function->next_edge(next++));
      } else {
        ended.push_back(edge);
        path.pop_back();
      }
    }
  }
  return ended;
}

// Returns the numbers of those nodes in `numbers` that are reachable from `first`.
std::vector<std::size_t> reached_from(const Edge& first, const Numbers& numbers) {
  std::vector<std::size_t> reached;
  for (const Edge& edge : post_order({first})) {
    if (const auto found = numbers.find(edge.function.get()); found != numbers.end())
      reached.push_back(found->second);
  }
  return reached;
}

}  // namespace

bool carries_gradient(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

std::vector<at::Tensor> gradient_carriers(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> carriers;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(carriers), carries_gradient);
  return carriers;
}

BackwardPass::BackwardPass(const Tensors& outputs, Tensors inputs, Tensors parameters)
    : outputs_(outputs), inputs_(std::move(inputs)), parameters_(std::move(parameters)) {}

void BackwardPass::take_roots(const Tensors& gradients) {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i].requires_grad() || !gradients[i].defined()) continue;
    roots_.push_back(outputs_[i]);
    root_gradients_.push_back(gradients[i]);
  }
}

at::Tensor BackwardPass::other_leaf() const {
  // These edges must live until the end: nothing else keeps alive the node of a leaf that is itself
  // an output.
  const edge_list inputs = edges_of(inputs_), parameters = edges_of(parameters_);
  std::unordered_set<Node*> known;
  for (const edge_list* edges : {&inputs, &parameters}) {
    for (const Edge& edge : *edges) known.insert(edge.function.get());
  }
  for (const Edge& edge : post_order(edges_of(outputs_))) {
    const auto* const leaf =
        dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get());
    if (leaf != nullptr && known.count(edge.function.get()) == 0) return leaf->variable;
  }
  return {};
}

BackwardPass::Tensors BackwardPass::run(const Tensors& targets, bool keep_graph) const {
  if (roots_.empty() || targets.empty()) return Tensors(targets.size());
  return torch::autograd::grad(roots_, targets, root_gradients_, keep_graph, false, true);
}

BackwardPass::Gradients BackwardPass::whole(const Tensors& gradients) {
  take_roots(gradients);
  Tensors targets = inputs_;
  targets.insert(targets.end(), parameters_.begin(), parameters_.end());
  const Tensors all = run(targets, false);
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(inputs_.size());
  return {{all.begin(), middle}, {middle, all.end()}};
}

void BackwardPass::find_branches() {
  Numbers numbers;
  const edge_list parameters = edges_of(parameters_), inputs = edges_of(inputs_);
  for (std::size_t i = 0; i < parameters.size(); ++i) numbers[parameters[i].function.get()] = i;
  std::unordered_set<Node*> to_inputs;
  for (const Edge& input : inputs) to_inputs.insert(input.function.get());

  const edge_list roots = edges_of(roots_);
  std::vector<bool> is_reached(parameters_.size());
  const auto take = [&](const Edge& from, std::vector<std::size_t>& into) {
    for (const std::size_t parameter : reached_from(from, numbers)) {
      repeats_ = repeats_ || is_reached[parameter];
      is_reached[parameter] = true;
      into.push_back(parameter);
    }
  };
  for (const Edge& reached : post_order(roots)) {
    Node* const node = reached.function.get();
    std::unordered_map<Node*, Edge> aside;
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      if (to_inputs.count(edge.function.get()) > 0) {
        to_inputs.insert(node);
      } else {
        aside.emplace(edge.function.get(), edge);
      }
    }
    if (to_inputs.count(node) == 0 || aside.empty()) continue;
    Branch branch;
    for (const auto& [other, edge] : aside) take(edge, branch.parameters);
    if (branch.parameters.empty()) continue;
    for (std::uint32_t i = 0; i < node->num_inputs(); ++i)
      branch.entries.emplace_back(reached.function, i);
    branches_.push_back(std::move(branch));
  }
  // For the parameters of outputs that depend on no input, the second half runs from the outputs.
  std::vector<std::size_t> alone;
  for (const Edge& root : roots) {
    if (to_inputs.count(root.function.get()) == 0) take(root, alone);
  }
  repeats_ = repeats_ || !alone.empty();
}

BackwardPass::Tensors BackwardPass::input_half(const Tensors& gradients) {
  take_roots(gradients);
  if (inputs_.empty() || roots_.empty()) return Tensors(inputs_.size());
  find_branches();
  if (repeats_) return run(inputs_, true);
  edge_list targets = edges_of(inputs_);
  for (const Branch& branch : branches_)
    targets.insert(targets.end(), branch.entries.begin(), branch.entries.end());
  Tensors all = torch::autograd::Engine::get_default_engine().execute(
      edges_of(roots_), root_gradients_, true, false, false, targets);
  auto next = all.begin() + static_cast<std::ptrdiff_t>(inputs_.size());
  for (Branch& branch : branches_) {
    const auto end = next + static_cast<std::ptrdiff_t>(branch.entries.size());
    branch.gradients.assign(next, end);
    next = end;
  }
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(inputs_.size())};
}

BackwardPass::Tensors BackwardPass::weight_half() {
  return inputs_.empty() || repeats_ ? run(parameters_, false) : run_branches();
}

BackwardPass::Tensors BackwardPass::run_branches() {
  Tensors result(parameters_.size());
  for (Branch& branch : branches_) {
    edge_list roots;
    Tensors gradients, targets;
    for (std::size_t i = 0; i < branch.entries.size(); ++i) {
      if (!branch.gradients[i].defined()) continue;
      roots.push_back(branch.entries[i]);
      gradients.push_back(branch.gradients[i]);
    }
    if (roots.empty()) continue;
    for (const std::size_t parameter : branch.parameters) targets.push_back(parameters_[parameter]);
    const Tensors found = torch::autograd::Engine::get_default_engine().execute(
        roots, gradients, false, false, false, edges_of(targets));
    for (std::size_t i = 0; i < found.size(); ++i) result[branch.parameters[i]] = found[i];
    branch = {};
  }
  return result;
}

namespace {

// Does the same as autograd: the first gradient becomes .grad if nothing else refers to its memory
// and LibTorch allocated it. The memory of a borrowed tensor (stage_links.h) belongs to another
// rank.
void accumulate(const at::Tensor& parameter, at::Tensor gradient) {
  at::NoGradGuard no_gradients;
  at::Tensor& total = own_gradient(parameter);
  if (total.defined()) {
    total.add_(gradient);
    return;
  }
  const bool is_own = gradient.use_count() == 1 && gradient.storage().use_count() == 1 &&
                      gradient.storage().resizable() && gradient.strides() == parameter.strides();
  total = is_own ? gradient.detach() : at::empty_like(parameter).copy_(gradient);
}

}  // namespace

void GradientOrder::add(int micro_batch, std::vector<at::Tensor> gradients) {
  early_.emplace(micro_batch, std::move(gradients));
  for (auto first = early_.begin(); first != early_.end() && first->first == next_;
       first = early_.begin()) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (first->second[i].defined()) accumulate(parameters_[i], std::move(first->second[i]));
    }
    early_.erase(first);
    ++next_;
  }
}

void GradientOrder::begin_step() {
  early_.clear();
  next_ = 0;
}

}  // namespace paceline
