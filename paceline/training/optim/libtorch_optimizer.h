#pragma once

// An optimizer of torch::optim where the library takes one of its own: it clips the gradients,
// scales losses, sets learning rates by a schedule and asks for a step, which LibTorch takes.
//
// The learning rates of both agree: a rate that was set here is passed on before a step, and one
// that the program set in LibTorch's options is taken over after it.

#include <cstddef>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

// Refers to `wrapped`, which must outlive it.
class LibTorchOptimizer final : public Optimizer {
 public:
  // Error(kUnsupported) for LBFGS, which needs a closure; Error(kInvalid) for options of the
  // program's own without get_lr() and set_lr(), and as for Optimizer.
  explicit LibTorchOptimizer(torch::optim::Optimizer& wrapped);

  torch::optim::Optimizer& wrapped() const { return wrapped_; }
  // Takes over the learning rates of LibTorch's options. Call it after they were loaded.
  void take_rates();

  double momentum(std::size_t group) const override;
  void set_momentum(std::size_t group, double momentum) override;
  // "torch::optim::SGD"
  const char* name() const override { return name_.c_str(); }

 private:
  bool take_whole_step(std::vector<double>& rates) const override;
  std::size_t num_bytes_of_own_state() const override;
  void update(const UpdateSlice& slice, const NormPair& norms) const override;

  torch::optim::Optimizer& wrapped_;
  const std::string name_;
  mutable std::vector<double> agreed_;  // [group]: the learning rate that both had last
};

}  // namespace paceline::optim
