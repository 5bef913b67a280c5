#pragma once

// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), as torch::optim::Adam and
// torch::optim::AdamW compute them.

#include <vector>

#include "paceline/optim/parameter_group.h"

namespace paceline::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

// Weight decay is added to the gradient.
class Adam : public GroupedOptimizer<AdamOptions> {
 public:
  Adam(const std::vector<at::Tensor>& parameters, const AdamOptions& options)
      : Adam({{parameters, options}}) {}
  explicit Adam(const std::vector<ParameterGroup<AdamOptions>>& groups);
  const char* name() const override { return "adam"; }

 private:
  void update(const Slice& slice, const NormPair& norms) const override;
};

// Weight decay shrinks the parameter itself; torch's default is 0.01.
class AdamW : public GroupedOptimizer<AdamOptions> {
 public:
  AdamW(const std::vector<at::Tensor>& parameters, const AdamOptions& options)
      : AdamW({{parameters, options}}) {}
  explicit AdamW(const std::vector<ParameterGroup<AdamOptions>>& groups);
  const char* name() const override { return "adamw"; }

 private:
  void update(const Slice& slice, const NormPair& norms) const override;
};

}  // namespace paceline::optim
