#pragma once

// An optimizer of modules on several workers: its options, the part at the owner of the modules
// (ModulesOptimizer), and the part at the caller (DistributedOptimizer).

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "paceline/engine/rpc/protocol/message.h"
#include "paceline/training/remote/remote_module.h"

namespace paceline::remote {

using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;

// The type of the options selects the optimizer. The options are sent as a message, and each owner
// constructs the optimizer itself. Options for torch::optim's optimizers are below. For an
// optimizer of its own, a program defines a type such as the following, and the owners serve it
// (serve_optimizer()):
//
//   struct Lion {
//     static constexpr std::string_view kName = "lion";
//     double lr = 1e-4;
//     static auto fields(auto& m) { return std::tie(m.lr); }
//     std::unique_ptr<torch::optim::Optimizer> make(Tensors parameters) const;
//   };
template <class T>
concept OptimizerOptions =
    rpc::Message<T> && requires(const T& options, std::vector<at::Tensor> parameters) {
      { T::kName } -> std::convertible_to<std::string_view>;
      { options.make(std::move(parameters)) } -> std::same_as<OptimizerPointer>;
    };

struct SGD {
  static constexpr std::string_view kName = "sgd";
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  static auto fields(auto& m) {
    return std::tie(m.lr, m.momentum, m.dampening, m.weight_decay, m.nesterov);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

struct Adam {
  static constexpr std::string_view kName = "adam";
  double lr = 1e-3, eps = 1e-8, weight_decay = 0;
  std::tuple<double, double> betas = {0.9, 0.999};
  bool amsgrad = false;
  static auto fields(auto& m) {
    return std::tie(m.lr, std::get<0>(m.betas), std::get<1>(m.betas), m.eps, m.weight_decay,
                    m.amsgrad);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

struct AdamW {
  static constexpr std::string_view kName = "adamw";
  double lr = 1e-3, eps = 1e-8, weight_decay = 1e-2;
  std::tuple<double, double> betas = {0.9, 0.999};
  bool amsgrad = false;
  static auto fields(auto& m) {
    return std::tie(m.lr, std::get<0>(m.betas), std::get<1>(m.betas), m.eps, m.weight_decay,
                    m.amsgrad);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

struct Adagrad {
  static constexpr std::string_view kName = "adagrad";
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
  static auto fields(auto& m) {
    return std::tie(m.lr, m.lr_decay, m.weight_decay, m.initial_accumulator_value, m.eps);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

struct RMSprop {
  static constexpr std::string_view kName = "rmsprop";
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false;
  static auto fields(auto& m) {
    return std::tie(m.lr, m.alpha, m.eps, m.weight_decay, m.momentum, m.centered);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

namespace detail {

struct StepRequest {
  std::vector<rpc::ObjectNumber> passes;  // the passes whose gradients are added up, in this order
  std::optional<double> learning_rate;    // set from this step on
  static auto fields(auto& m) { return std::tie(m.passes, m.learning_rate); }
};

// The part of a DistributedOptimizer at an owner: an optimizer for the modules of that owner, which
// takes the gradients from the passes that a step lists.
//
// Thread safety: one call of step() at a time; rpc never runs two calls of one object at once.
class ModulesOptimizer {
 public:
  using Make = std::function<OptimizerPointer(std::vector<at::Tensor> parameters)>;
  // Throws Error(kInvalid) if a module does not exist on this worker, or if none has parameters
  // that require gradients.
  ModulesOptimizer(const std::vector<rpc::ObjectNumber>& modules, const rpc::Context& context,
                   const Make& make);
  // Throws Error(kInvalid) if a pass does not exist on this worker or no pass has a gradient; in
  // that case nothing has changed.
  void step(const StepRequest& request, rpc::Context& context);

 private:
  // The optimizer updates `stepped`, a second tensor over the memory of the parameter `own`. So its
  // steps do not count as writes in the graphs of other workers' passes, and the module's own .grad
  // does not change.
  struct Parameter {
    at::Tensor own, stepped;
  };
  std::vector<std::shared_ptr<ServedModule>> modules_;  // sorted by address
  std::vector<Parameter> parameters_;
  OptimizerPointer optimizer_;
};

template <OptimizerOptions Options>
class ServedOptimizer {
 public:
  inline static const std::string_view kName =
      rpc::detail::full_method_name("paceline.optimizer", Options::kName);
  struct Arguments {
    std::vector<rpc::ObjectNumber> modules;
    Options options;
    static auto fields(auto& m) { return std::tie(m.modules, m.options); }
  };
  ServedOptimizer(const Arguments& given, rpc::Context& context)
      : optimizer_(given.modules, context, [&](std::vector<at::Tensor> parameters) {
          return given.options.make(std::move(parameters));
        }) {}

  rpc::Nothing step(const StepRequest& request, rpc::Context& context) {
    optimizer_.step(request, context);
    return {};
  }
  // Returns once the constructor has succeeded.
  rpc::Nothing ready(const rpc::Nothing& nothing) { return nothing; }
  static auto methods() {
    return std::tuple(rpc::method<&ServedOptimizer::step>("step", rpc::Effect::kOnce),
                      rpc::method<&ServedOptimizer::ready>("ready", rpc::Effect::kRepeatable));
  }

 private:
  ModulesOptimizer optimizer_;
};

}  // namespace detail

// A step that failed at one or more owners.
class StepError : public Error {
 public:
  struct Outcome {
    std::string owner;
    rpc::CallError::Executed executed =
        rpc::CallError::Executed::kYes;  // kYes with an empty text: the step was taken
    std::string text;
  };
  StepError(ErrorCode code, const std::string& message, std::vector<Outcome> outcomes)
      : Error(code, message), outcomes_(std::move(outcomes)) {}
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  std::vector<Outcome> outcomes_;
};

// An optimizer whose parameters are on several workers: constructs an optimizer at each owner of
// the modules, and one in this process for local parameters.
//
//   remote::DistributedOptimizer optimizer(*workers, {encoder, decoder}, remote::Adam{.lr = 1e-3},
//                                          head->parameters());
//   auto loss = ...;
//   loss.backward();
//   optimizer.step(loss);
//
// step() applies gradients only from passes that go through these modules and belong to the graph
// of the loss. So workers that share a module and have separate optimizers do not mix their
// gradients. step() calls all owners of these passes at the same time. If the module of one owner
// calls a module of another worker, that module takes part if it is among the optimizer's modules.
// Several losses, for instance of micro-batches, can be one step: their gradients are added up in
// the order of the list.
//
// A step clears the gradients that it has applied, on every worker: there is no zero_grad(). The
// gradients of a loss that is dropped without a step are freed with its graph. The gradients of
// local parameters are in their .grad, as usual.
//
// Thread safety: none.
class DistributedOptimizer {
 public:
  // Waits until all owners have constructed their optimizers. Throws rpc::CallError if an owner
  // failed to do so.
  template <OptimizerOptions Options>
  DistributedOptimizer(rpc::Workers& workers, const std::vector<RemoteModule>& modules,
                       const Options& options, std::vector<at::Tensor> local = {})
      : local_(std::move(local)) {
    std::vector<rpc::Future<rpc::Nothing>> made;
    for (const auto& [owner, numbers] : by_owner(modules)) {
      const auto there =
          workers.create<detail::ServedOptimizer<Options>>(owner, {numbers, options});
      made.push_back(there.template call<&detail::ServedOptimizer<Options>::ready>());
      owners_.push_back({owner, [there](detail::StepRequest request) {
                           return there.template call<&detail::ServedOptimizer<Options>::step>(
                               std::move(request));
                         }});
    }
    if (!local_.empty()) optimizer_ = options.make(local_);
    for (auto& future : made) future.get();
  }

  // Takes a step; call it after backward(). Throws StepError if an owner failed; outcomes() shows
  // which owners have taken the step. Local parameters are updated last, and only if no owner
  // failed; otherwise their .grad is kept. Throws Error(kInvalid) if there is no gradient to apply.
  void step(const at::Tensor& loss) { step(std::vector<at::Tensor>{loss}); }
  void step(const std::vector<at::Tensor>& losses);
  // Sets the learning rate on every worker, from the next step on.
  void set_learning_rate(double learning_rate) { learning_rate_ = learning_rate; }

 private:
  struct Owner {
    std::string name;
    std::function<rpc::Future<rpc::Nothing>(detail::StepRequest)> step;
  };
  struct Modules {
    std::string owner;
    std::vector<rpc::ObjectNumber> numbers;
  };
  static std::vector<Modules> by_owner(const std::vector<RemoteModule>& modules);
  void step_local();

  std::vector<Owner> owners_;
  std::vector<at::Tensor> local_;
  OptimizerPointer optimizer_;  // for the local parameters
  std::optional<double> learning_rate_;
};

// Lets other workers construct optimizers of a program's own type on this worker.
template <OptimizerOptions Options>
void serve_optimizer(rpc::Workers& workers) {
  workers.serve<detail::ServedOptimizer<Options>>();
}

}  // namespace paceline::remote
