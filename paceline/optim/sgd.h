#pragma once

// Stochastic gradient descent with momentum, as torch::optim::SGD computes it.

#include <vector>

#include "paceline/optim/optimizer.h"

namespace paceline::optim {

struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum > 0 and no dampening
};

class Sgd : public Optimizer {
 public:
  Sgd(const std::vector<at::Tensor>& parameters, const SgdOptions& options);
  const char* name() const override { return "sgd"; }

 private:
  void update(const Slice& slice) const override;
  const SgdOptions options_;
};

}  // namespace paceline::optim
