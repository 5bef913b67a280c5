#pragma once

// Adam, AdamW, SGD, LAMB and LARS. Parameters come in groups, each with its own options, as in
// PyTorch's optimizers: for instance another learning rate for a new head, or no weight decay for
// biases.
//
//   Adam plain(net->parameters());            // the default options
//   Adam with_rate(net->parameters(), 1e-4);  // default options except for the learning rate
//   Adam adam({{backbone->parameters(), {.lr = 1e-4}}, {head->parameters(), {.lr = 1e-3}}});
//
// Options are structs with designated initialisers, with PyTorch's names and defaults.

#include <concepts>
#include <tuple>
#include <utility>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

template <class Options>
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  Options options;
};

// An optimizer whose groups have `Options`, which must have a member `lr`. That member is the
// initial learning rate; Optimizer keeps the current one.
template <class Options>
class GroupedOptimizer : public Optimizer {
 public:
  const Options& options(std::size_t group = 0) const { return options_.at(group); }
  double momentum(std::size_t group) const override { return momentum_in(options_.at(group)); }
  void set_momentum(std::size_t group, double momentum) override {
    if (!(momentum >= 0 && momentum < 1) || (momentum > 0 && !has_state()))
      throw Error(ErrorCode::kInvalid,
                  "a momentum must be in [0, 1), and 0 in an optimizer that began without one");
    momentum_in(options_.at(group)) = momentum;
  }
  // Adds a group, at any time before shard(), even after steps: the other groups keep their state.
  // Error(kInvalid) for a parameter that is already in a group, for options that the constructor
  // would reject, and when the optimizer is sharded. Construct schedules afterwards, because they
  // store a base rate for each group.
  void add_param_group(const ParameterGroup<Options>& group) {
    require_valid(group.options);
    add_group({group.parameters, group.options.lr});
    options_.push_back(group.options);
  }

 protected:
  // Throws Error(kInvalid) for options that no group may have.
  virtual void require_valid(const Options& options) const = 0;
  GroupedOptimizer(const std::vector<ParameterGroup<Options>>& groups,
                   std::vector<std::string> state_names, Norms norms = Norms::kNone)
      : Optimizer(tensors_of(groups), std::move(state_names), norms) {
    for (const auto& group : groups) options_.push_back(group.options);
  }

 private:
  static std::vector<GroupTensors> tensors_of(const std::vector<ParameterGroup<Options>>& groups) {
    std::vector<GroupTensors> tensors;
    for (const auto& group : groups) tensors.push_back({group.parameters, group.options.lr});
    return tensors;
  }
  template <class Any>
  static auto& momentum_in(Any& options) {
    if constexpr (requires { options.momentum; }) {
      return options.momentum;
    } else {
      return std::get<0>(options.betas);
    }
  }

  std::vector<Options> options_;  // [group]
};

// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), as torch::optim::Adam and
// torch::optim::AdamW compute them.
struct AdamOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
};

// Adam adds the weight decay to the gradient.
class Adam : public GroupedOptimizer<AdamOptions> {
 public:
  explicit Adam(const std::vector<at::Tensor>& parameters, const AdamOptions& options = {});
  Adam(const std::vector<at::Tensor>& parameters, std::floating_point auto lr)
      : Adam(parameters, AdamOptions{.lr = lr}) {}
  explicit Adam(const std::vector<ParameterGroup<AdamOptions>>& groups);
  const char* name() const override { return "adam"; }

 private:
  void require_valid(const AdamOptions& options) const override;
  void update(const UpdateSlice& slice, const NormPair& norms) const override;
  void update(const UpdateLists& lists) const override;
};

struct AdamWOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

// AdamW applies the weight decay to the parameter itself.
class AdamW : public GroupedOptimizer<AdamWOptions> {
 public:
  explicit AdamW(const std::vector<at::Tensor>& parameters, const AdamWOptions& options = {});
  AdamW(const std::vector<at::Tensor>& parameters, std::floating_point auto lr)
      : AdamW(parameters, AdamWOptions{.lr = lr}) {}
  explicit AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups);
  const char* name() const override { return "adamw"; }

 private:
  void require_valid(const AdamWOptions& options) const override;
  void update(const UpdateSlice& slice, const NormPair& norms) const override;
  void update(const UpdateLists& lists) const override;
};

// Stochastic gradient descent with momentum, as torch::optim::SGD computes it.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // requires momentum > 0 and no dampening
};

// Keeps a velocity for every parameter if any group begins with momentum. While a group's momentum
// is 0, its velocities stay as they are. A velocity that begins after a parameter's first step is
// dampened, unlike PyTorch's.
class SGD : public GroupedOptimizer<SGDOptions> {
 public:
  explicit SGD(const std::vector<at::Tensor>& parameters, const SGDOptions& options = {});
  SGD(const std::vector<at::Tensor>& parameters, std::floating_point auto lr)
      : SGD(parameters, SGDOptions{.lr = lr}) {}
  explicit SGD(const std::vector<ParameterGroup<SGDOptions>>& groups);
  const char* name() const override { return "sgd"; }

 private:
  void require_valid(const SGDOptions& options) const override;
  void update(const UpdateSlice& slice, const NormPair& norms) const override;
  void update(const UpdateLists& lists) const override;
};

// LAMB (You et al., 2020) and LARS (You, Gitman and Ginsburg, 2017), for the large batches of many
// ranks: each parameter's step is proportional to the norm of the parameter itself, through the
// "trust ratio", a ratio of two norms of the whole parameter.
//
// A sharded step costs one more all-gather, of 16 bytes for each block of 1,024 elements.
struct LAMBOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0;
  bool adapt = true;  // false: a trust ratio of 1, as is usual for biases and normalisation layers
};

// With Adam's m and v, corrected for their bias: u = m / (sqrt(v) + eps) + weight_decay x w, w -=
// lr x |w| / |u| x u. The ratio is 1 if a norm is 0.
class LAMB : public GroupedOptimizer<LAMBOptions> {
 public:
  explicit LAMB(const std::vector<at::Tensor>& parameters, const LAMBOptions& options = {});
  LAMB(const std::vector<at::Tensor>& parameters, std::floating_point auto lr)
      : LAMB(parameters, LAMBOptions{.lr = lr}) {}
  explicit LAMB(const std::vector<ParameterGroup<LAMBOptions>>& groups);
  const char* name() const override { return "lamb"; }

 private:
  void require_valid(const LAMBOptions& options) const override;
  NormPair measure(const UpdateSlice& slice) const override;
  std::vector<at::Tensor> measure(const UpdateLists& lists) const override;
  void update(const UpdateSlice& slice, const NormPair& norms) const override;
  void update(const UpdateLists& lists) const override;
};

struct LARSOptions {
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  bool adapt = true;  // false: plain SGD with momentum
};

// rate = lr x trust_coefficient x |w| / (|g| + weight_decay x |w|), v = momentum x v + rate x (g +
// weight_decay x w), w -= v. The rate is lr if a norm is 0.
class LARS : public GroupedOptimizer<LARSOptions> {
 public:
  explicit LARS(const std::vector<at::Tensor>& parameters, const LARSOptions& options = {});
  LARS(const std::vector<at::Tensor>& parameters, std::floating_point auto lr)
      : LARS(parameters, LARSOptions{.lr = lr}) {}
  explicit LARS(const std::vector<ParameterGroup<LARSOptions>>& groups);
  const char* name() const override { return "lars"; }

 private:
  void require_valid(const LARSOptions& options) const override;
  NormPair measure(const UpdateSlice& slice) const override;
  std::vector<at::Tensor> measure(const UpdateLists& lists) const override;
  void update(const UpdateSlice& slice, const NormPair& norms) const override;
  void update(const UpdateLists& lists) const override;
};

}  // namespace paceline::optim
