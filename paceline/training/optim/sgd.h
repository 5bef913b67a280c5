#pragma once

// Stochastic gradient descent with momentum, as torch::optim::SGD computes it.

#include <vector>

#include "paceline/training/optim/parameter_group.h"

namespace paceline::optim {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum > 0 and no dampening
};

// Keeps a velocity for every parameter if one group has momentum.
class Sgd : public GroupedOptimizer<SgdOptions> {
 public:
  Sgd(const std::vector<at::Tensor>& parameters, const SgdOptions& options)
      : Sgd({{parameters, options}}) {}
  explicit Sgd(const std::vector<ParameterGroup<SgdOptions>>& groups);
  const char* name() const override { return "sgd"; }

 private:
  void require_valid(const SgdOptions& options) const override;
  void update(const Slice& slice, const NormPair& norms) const override;
};

}  // namespace paceline::optim
