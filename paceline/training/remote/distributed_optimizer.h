#pragma once

// An optimizer whose parameters are on several workers: makes an optimizer at each owner of the
// modules, and one here for local parameters.
//
//   remote::DistributedOptimizer optimizer(*workers, {encoder, decoder}, remote::Adam{.lr = 1e-3},
//                                          head->parameters());
//   auto loss = ...;
//   loss.backward();
//   optimizer.step(loss);
//
// step() applies the gradients of the passes through these modules that are in the graph of the
// loss, and of no other pass, so workers that share a module and have optimizers of their own do
// not mix their gradients. It is one call for each owner, all at the same time. Modules that owners
// have on third workers take part if they are among the optimizer's modules. Several losses, of
// micro-batches, are one step: their gradients are added up in the order of the list.
//
// Applied gradients are gone, here and there: there is no zero_grad(). Those of a loss that is
// dropped without a step are gone with its graph. The gradients of local parameters are in their
// .grad, as always.
//
// Thread safety: none.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/training/remote/remote_module.h"
#include "paceline/training/remote/served_optimizer.h"

namespace paceline::remote {

// A step that failed at one owner at least.
class StepError : public Error {
 public:
  struct Outcome {
    std::string owner;
    rpc::Executed executed = rpc::Executed::kYes;  // kYes, without a text: the step was taken
    std::string text;
  };
  StepError(ErrorCode code, const std::string& message, std::vector<Outcome> outcomes)
      : Error(code, message), outcomes_(std::move(outcomes)) {}
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  std::vector<Outcome> outcomes_;
};

class DistributedOptimizer {
 public:
  // Waits until all owners have made theirs. rpc::CallError if one could not.
  template <OptimizerOptions Options>
  DistributedOptimizer(rpc::Workers& workers, const std::vector<RemoteModule>& modules,
                       const Options& options, std::vector<at::Tensor> local = {})
      : local_(std::move(local)) {
    std::vector<rpc::Future<rpc::Nothing>> made;
    for (const auto& [owner, numbers] : by_owner(modules)) {
      const auto there = workers.create<ServedOptimizer<Options>>(owner, {numbers, options});
      made.push_back(there.template call<&ServedOptimizer<Options>::ready>());
      owners_.push_back({owner, [there](StepRequest request) {
                           return there.template call<&ServedOptimizer<Options>::step>(
                               std::move(request));
                         }});
    }
    if (!local_.empty()) optimizer_ = options.make(local_);
    for (auto& future : made) future.get();
  }

  // Once backward() has run. StepError if an owner failed: every method of an owner's optimizer is
  // executed once, so its outcome says whether the step was taken there. Local parameters are
  // stepped last, only if no owner failed; otherwise their .grad stays. Error(kInvalid) if there is
  // no gradient to apply.
  void step(const at::Tensor& loss) { step(std::vector<at::Tensor>{loss}); }
  void step(const std::vector<at::Tensor>& losses);
  // From the next step on, everywhere.
  void set_learning_rate(double learning_rate) { learning_rate_ = learning_rate; }

 private:
  struct Owner {
    std::string name;
    std::function<rpc::Future<rpc::Nothing>(StepRequest)> step;
  };
  struct Modules {
    std::string owner;
    std::vector<rpc::ObjectNumber> numbers;
  };
  static std::vector<Modules> by_owner(const std::vector<RemoteModule>& modules);
  void step_local();

  std::vector<Owner> owners_;
  std::vector<at::Tensor> local_;
  OptimizerPointer optimizer_;  // of the local parameters
  std::optional<double> learning_rate_;
};

// Lets others make an optimizer of a program's own type here (optimizers.h).
template <OptimizerOptions Options>
void serve_optimizer(rpc::Workers& workers) {
  workers.serve<ServedOptimizer<Options>>();
}

}  // namespace paceline::remote
