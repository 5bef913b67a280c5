#pragma once

// LAMB (You et al., 2020) and LARS (You, Gitman and Ginsburg, 2017), for the large batches that
// many ranks make: each parameter's step is in proportion to the parameter's own size, by the
// "trust ratio" of norms over the whole parameter.
//
// A norm adds up the blocks of the parameters' row (flat_layout.h), each as block_kernels.h does,
// in the order of the row, so that it has the same bits for any number of threads and of ranks that
// the state is divided among. Dividing costs one all-gather a step more, of 16 bytes a block.

#include <vector>

#include "paceline/training/optim/parameter_group.h"

namespace paceline::optim {

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0;
  bool adapt = true;  // false: a trust ratio of 1, as is usual for biases and normalisation layers
};

// With m and v as Adam's, corrected for their bias: u = m / (sqrt(v) + eps) + weight_decay x w,
// w -= lr x |w| / |u| x u. The ratio is 1 where a norm is 0.
class Lamb : public GroupedOptimizer<LambOptions> {
 public:
  Lamb(const std::vector<at::Tensor>& parameters, const LambOptions& options)
      : Lamb({{parameters, options}}) {}
  explicit Lamb(const std::vector<ParameterGroup<LambOptions>>& groups);
  const char* name() const override { return "lamb"; }

 private:
  void require_valid(const LambOptions& options) const override;
  NormPair measure(const Slice& slice) const override;
  void update(const Slice& slice, const NormPair& norms) const override;
};

struct LarsOptions {
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  bool adapt = true;  // false: plain SGD with momentum
};

// rate = lr x trust_coefficient x |w| / (|g| + weight_decay x |w|),
// v = momentum x v + rate x (g + weight_decay x w), w -= v. The rate is lr where a norm is 0.
class Lars : public GroupedOptimizer<LarsOptions> {
 public:
  Lars(const std::vector<at::Tensor>& parameters, const LarsOptions& options)
      : Lars({{parameters, options}}) {}
  explicit Lars(const std::vector<ParameterGroup<LarsOptions>>& groups);
  const char* name() const override { return "lars"; }

 private:
  void require_valid(const LarsOptions& options) const override;
  NormPair measure(const Slice& slice) const override;
  void update(const Slice& slice, const NormPair& norms) const override;
};

}  // namespace paceline::optim
