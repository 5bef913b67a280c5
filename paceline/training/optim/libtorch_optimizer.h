#pragma once

// Wraps an optimizer of torch::optim for functions that take one of paceline::optim: gradients are
// clipped, losses are scaled and schedules set the learning rates as usual, and LibTorch takes the
// step.
//
// Both optimizers keep the same learning rates: a rate that was set in the wrapper is copied to
// LibTorch's options before a step, and the rates in LibTorch's options are copied back after it.

#include <cstddef>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

// This object refers to `wrapped`, which must outlive it.
class LibTorchOptimizer final : public Optimizer {
 public:
  // Error(kUnsupported) for LBFGS, which needs a closure; Error(kInvalid) for a program's own
  // options without get_lr(); errors of Optimizer. Requires: the options have set_lr() too.
  explicit LibTorchOptimizer(torch::optim::Optimizer& wrapped);

  torch::optim::Optimizer& wrapped() const { return wrapped_; }
  // Copies the learning rates from LibTorch's options. Call it after the options were loaded.
  void take_rates();

  double momentum(std::size_t group) const override;
  void set_momentum(std::size_t group, double momentum) override;
  // The class of `wrapped`, for instance "torch::optim::SGD".
  const char* name() const override { return name_.c_str(); }

 private:
  bool take_whole_step(std::vector<double>& rates) const override;
  std::size_t num_bytes_of_own_state() const override;
  void update(const UpdateSlice& slice, const NormPair& norms) const override;

  torch::optim::Optimizer& wrapped_;
  const std::string name_;
  std::vector<bool> has_momentum_;      // [group]: whether the group began with momentum
  mutable std::vector<double> agreed_;  // [group]: the last rate that both optimizers had
};

}  // namespace paceline::optim
