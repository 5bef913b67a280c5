#pragma once

// The backward pass of one micro-batch through one stage, as a whole or in two halves: first the
// gradients of the stage's inputs, later those of its parameters. Both variants run the same
// autograd nodes, so the results have the same bits.
//
// A node that leads to an input and, by another edge, to parameters (such as a linear layer's)
// computes two gradients. The first half runs everything that leads to inputs, and keeps the
// gradient that arrives at each such node; the second half begins at these nodes and runs only
// nodes that lead to parameters. If that is impossible, because a parameter is reached from several
// nodes or from an output that depends on no input, the second half runs from the outputs again,
// which is slower and gives the same result. The tensors that the forward pass saved are kept until
// the second half.
//
// Thread safety: none.

#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

namespace paceline {

// Whether a backward pass computes a gradient of this tensor: it is floating-point or complex.
bool carries_gradient(const at::Tensor& tensor);
// Returns those of `tensors` that carry gradients, in the same order.
std::vector<at::Tensor> gradient_carriers(const std::vector<at::Tensor>& tensors);

class BackwardPass {
 public:
  using Tensors = std::vector<at::Tensor>;

  // Gradients flow from `outputs` (outputs without a graph are skipped) to `inputs` and
  // `parameters`; these must be leaves that require gradients.
  BackwardPass(const Tensors& outputs, Tensors inputs, Tensors parameters);

  struct Gradients {
    Tensors of_inputs, of_parameters;  // undefined: there is no gradient
  };
  // May be called once. `gradients` belong to the outputs; undefined: the output was not used.
  Gradients whole(const Tensors& gradients);
  // Each half may be called once, in this order.
  Tensors input_half(const Tensors& gradients);
  Tensors weight_half();

  // A leaf to which gradients flow that is neither an input nor a parameter; undefined if there is
  // none.
  at::Tensor other_leaf() const;

  // Whether the second half runs from the outputs again.
  bool repeats() const { return repeats_; }

 private:
  // A node at which gradients of parameters branch off from those of inputs.
  struct Branch {
    std::vector<torch::autograd::Edge> entries;  // the node's inputs
    std::vector<std::size_t> parameters;
    Tensors gradients;  // by entry, kept by the first half
  };

  void take_roots(const Tensors& gradients);
  void find_branches();
  Tensors run(const Tensors& targets, bool keep_graph) const;
  Tensors run_branches();

  const Tensors outputs_, inputs_, parameters_;
  Tensors roots_, root_gradients_;
  std::vector<Branch> branches_;
  bool repeats_ = false;
};

// Adds the gradients of micro-batches to the parameters' .grad in the order of micro-batches, in
// whatever order they arrive: the same additions as in a single process that takes the
// micro-batches in order. Gradients that arrive early are kept until their turn, which takes
// memory; in the named schedules none arrive early. Thread safety: none.
class GradientOrder {
 public:
  explicit GradientOrder(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}

  // `gradients` has one tensor for each parameter; undefined: the micro-batch did not use the
  // parameter.
  void add(int micro_batch, std::vector<at::Tensor> gradients);
  // Begins the next step, in which the first micro-batch is number 0 again.
  void begin_step();

 private:
  std::vector<at::Tensor> parameters_;
  std::map<int, std::vector<at::Tensor>> early_;
  int next_ = 0;
};

}  // namespace paceline
