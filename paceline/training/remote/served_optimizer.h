#pragma once

// A DistributedOptimizer's end at one owner of parameters: an optimizer of its own for the modules
// of that owner, which takes the gradients of the passes that a step names.
//
// Thread safety: step() one at a time, as rpc does for an object.

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

#include "paceline/training/remote/optimizers.h"
#include "paceline/training/remote/pass.h"

namespace paceline::remote {

struct StepRequest {
  std::vector<rpc::ObjectNumber> passes;  // gradients are added up in this order
  std::optional<double> learning_rate;    // from now on
  static auto fields(auto& m) { return std::tie(m.passes, m.learning_rate); }
};

// An optimizer and the modules whose parameters it has.
class ModulesOptimizer {
 public:
  using Make = std::function<OptimizerPointer(std::vector<at::Tensor> parameters)>;
  // Error(kInvalid) if a module is not here, or none has parameters that require gradients.
  ModulesOptimizer(const std::vector<rpc::ObjectNumber>& modules, const rpc::Context& context,
                   const Make& make);
  // Error(kInvalid), with nothing changed, if a pass is not here or none has a gradient.
  void step(const StepRequest& request, rpc::Context& context);

 private:
  // The optimizer has a tensor of its own in each parameter's memory. So its steps do not count as
  // writes for the graphs of other workers' passes, and the module's own .grad stays as it is.
  struct Parameter {
    at::Tensor own, stepped;
  };
  std::vector<std::shared_ptr<ServedModule>> modules_;  // by their addresses
  std::vector<Parameter> parameters_;
  OptimizerPointer optimizer_;
};

template <OptimizerOptions Options>
class ServedOptimizer {
 public:
  inline static const std::string_view kName =
      rpc::full_method_name("paceline.optimizer", Options::kName);
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
  // Says that the constructor has succeeded.
  rpc::Nothing ready(const rpc::Nothing& nothing) { return nothing; }
  static auto methods() {
    return std::tuple(rpc::method<&ServedOptimizer::step>("step", rpc::Effect::kOnce),
                      rpc::method<&ServedOptimizer::ready>("ready", rpc::Effect::kRepeatable));
  }

 private:
  ModulesOptimizer optimizer_;
};

}  // namespace paceline::remote
