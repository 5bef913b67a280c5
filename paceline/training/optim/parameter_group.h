#pragma once

// Parameters with options of their own, as PyTorch's optimizers take them: another learning rate
// for a new head, no weight decay for biases.
//
//   Adam adam({{backbone->parameters(), {.lr = 1e-4}}, {head->parameters(), {.lr = 1e-3}}});

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

// An optimizer whose groups have `Options`, with a member `lr`. The current learning rates are the
// Optimizer's.
template <class Options>
class GroupedOptimizer : public Optimizer {
 public:
  const Options& options(std::size_t group = 0) const { return options_.at(group); }
  double momentum(std::size_t group) const override { return momentum_in(options_.at(group)); }
  void set_momentum(std::size_t group, double momentum) override {
    if (!(momentum >= 0 && momentum < 1) || (momentum > 0 && this->momentum(group) == 0))
      throw Error(ErrorCode::kInvalid,
                  "a momentum must be in [0, 1), and 0 in a group that began without");
    momentum_in(options_.at(group)) = momentum;
  }
  // Adds a group, at any time before shard(), also after steps: the others keep their state.
  // Error(kInvalid) for a parameter that is in a group already, for options that the constructor
  // refuses, and when the optimizer is sharded. Make schedules afterwards: they have a base rate
  // for each group.
  void add_param_group(const ParameterGroup<Options>& group) {
    require_valid(group.options);
    add_group({group.parameters, group.options.lr});
    options_.push_back(group.options);
  }

 protected:
  // Error(kInvalid) for options that no group may have.
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
      return options.beta1;
    }
  }

  std::vector<Options> options_;  // [group]
};

}  // namespace paceline::optim
