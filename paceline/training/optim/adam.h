#pragma once

// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), as torch::optim::Adam and
// torch::optim::AdamW compute them.

#include <vector>

#include "paceline/training/optim/parameter_group.h"

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
  void require_valid(const AdamOptions& options) const override;
  void update(const Slice& slice, const NormPair& norms) const override;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

// Weight decay shrinks the parameter itself.
class AdamW : public GroupedOptimizer<AdamWOptions> {
 public:
  AdamW(const std::vector<at::Tensor>& parameters, const AdamWOptions& options)
      : AdamW({{parameters, options}}) {}
  explicit AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups);
  const char* name() const override { return "adamw"; }

 private:
  void require_valid(const AdamWOptions& options) const override;
  void update(const Slice& slice, const NormPair& norms) const override;
};

}  // namespace paceline::optim
