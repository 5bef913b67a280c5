#include "paceline/training/autograd/assign_branches.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <span>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/autograd/branch_call.h"

namespace paceline {
namespace {

using Tensors = std::vector<at::Tensor>;

// Puts back the branch's buffers, which a forward pass may change.
class KeptBuffers {
 public:
  explicit KeptBuffers(const Branch& branch) : buffers_(branch.buffers) {
    for (const at::Tensor& buffer : buffers_) copies_.push_back(buffer.detach().clone());
  }
  ~KeptBuffers() {
    const at::NoGradGuard no_gradients;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(copies_[i]);
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  const Tensors buffers_;
  Tensors copies_;
};

// Seconds of a forward and a backward pass, which leaves .grad alone.
double time_branch(const ProcessGroup& group, const Branch& branch, const Tensors& inputs) {
  const at::AutoGradMode with_gradients(true);
  Tensors leaves, targets;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().requires_grad_(input.requires_grad()));
  for (const Tensors* tensors :
       std::initializer_list<const Tensors*>{&leaves, &branch.parameters}) {
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.requires_grad()) targets.push_back(tensor);
    }
  }
  const auto backward = [&](const Tensors& given) {
    const at::Tensor result = branch.forward(given);
    if (result.defined() && result.requires_grad() && !targets.empty())
      torch::autograd::grad({result}, targets, {at::ones_like(result)}, {}, false, true);
    return result.detach();
  };
  const auto start = std::chrono::steady_clock::now();
  run_branch(group, {branch.name, backward}, leaves);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<int> assign_branches(const std::vector<double>& costs, int num_ranks) {
  check(num_ranks >= 1, "assign_branches: {} ranks", num_ranks);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    check(std::isfinite(costs[i]) && costs[i] >= 0, "assign_branches: the cost of branch {} is {}",
          i, costs[i]);
  }
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<double> work(static_cast<std::size_t>(num_ranks));
  std::vector<int> owner(costs.size());
  for (const std::size_t branch : order) {
    const auto least = std::min_element(work.begin(), work.end());
    *least += costs[branch];
    owner[branch] = static_cast<int>(least - work.begin());
  }
  return owner;
}

std::vector<double> measure_branches(ProcessGroup& group, const Tensors& inputs,
                                     const std::vector<Branch>& branches, int repeats) {
  std::vector<double> costs;
  agree(group, {"measure_branches", branches, nullptr, inputs}, [&] {
    check(repeats >= 1, "{} repeats", repeats);
    for (const Branch& branch : branches) {
      const KeptBuffers buffers(branch);
      const SeededRandom random(0);
      time_branch(group, branch, inputs);  // allocates, and loads what is used for the first time
      double fastest = std::numeric_limits<double>::infinity();
      for (int i = 0; i < repeats; ++i)
        fastest = std::min(fastest, time_branch(group, branch, inputs));
      costs.push_back(fastest);
    }
    return Tensors();
  });
  group.all_reduce(std::span(costs), ReduceOp::kMean);
  return costs;
}

}  // namespace paceline
