#include "paceline/training/parallel/activation_checkpoint.h"

#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "paceline/training/parallel/backward_end.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor/libtorch_version.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor/random_state.h"

namespace paceline {
namespace {

// Marks a backward pass that runs within another one. LibTorch would run callbacks when the inner
// pass ends, so this class keeps the callbacks for the end of the outer pass until the inner pass
// has ended.
class InnerPass {
 public:
  InnerPass() { ++depth_; }
  ~InnerPass() { --depth_; }
  InnerPass(const InnerPass&) = delete;
  InnerPass& operator=(const InnerPass&) = delete;

  static bool is_within() { return depth_ > 0; }
  static void keep(std::function<void()> then) { kept_.push_back(std::move(then)); }
  static std::vector<std::function<void()>> take() { return std::exchange(kept_, {}); }

 private:
  static thread_local int depth_;
  static thread_local std::vector<std::function<void()>> kept_;
};
thread_local int InnerPass::depth_ = 0;
thread_local std::vector<std::function<void()>> InnerPass::kept_;

// Marks this thread as running a checkpointed part until the end of the scope.
class RunningPart {
 public:
  RunningPart() { ++depth_; }
  ~RunningPart() { --depth_; }
  RunningPart(const RunningPart&) = delete;
  RunningPart& operator=(const RunningPart&) = delete;

  static bool is_within() { return depth_ > 0; }

 private:
  static thread_local int depth_;
};
thread_local int RunningPart::depth_ = 0;

struct Part : torch::CustomClassHolder {
  std::function<TensorList(const TensorList&)> run;
  RandomState state;  // the random state at the beginning of the part
  bool is_autocast = CpuAutocast::is_enabled();
  at::ScalarType autocast_type = CpuAutocast::dtype();
};

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // `anchor` requires a gradient, so the outputs require one too, even if no input does.
  static variable_list forward(AutogradContext* context, const at::Tensor& anchor,
                               at::TensorList inputs, c10::intrusive_ptr<Part> part) {
    (void)anchor;
    part->state = random_state();
    context->save_for_backward(inputs.vec());
    context->saved_data["part"] = c10::IValue::make_capsule(part);
    const RunningPart running;
    return part->run(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["part"].toCapsule();
    auto& part = static_cast<Part&>(*capsule);
    variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.defined() ? saved.detach().requires_grad_(saved.requires_grad())
                                       : saved);
    }
    variable_list roots, root_gradients;
    {
      const RandomStateGuard state(part.state);
      const at::AutoGradMode with_gradients(true);
      const Autocast autocast(part.autocast_type, part.is_autocast);
      const RunningPart running;
      const TensorList outputs = part.run(inputs);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    if (!roots.empty()) {
      try {
        const InnerPass pass;
        torch::autograd::backward(roots, root_gradients);
      } catch (...) {  // the outer pass fails too, and runs no callbacks
        InnerPass::take();
        throw;
      }
    }
    for (auto& then : InnerPass::take()) at_end_of_backward(std::move(then));
    variable_list result = {at::Tensor()};
    for (const at::Tensor& input : inputs)
      result.push_back(input.defined() ? input.grad() : at::Tensor());
    result.emplace_back();  // for the argument `part`, which has no gradient
    return result;
  }
};

}  // namespace

TensorList activation_checkpoint(std::function<TensorList(const TensorList& inputs)> part,
                                 const TensorList& inputs) {
  if (!at::GradMode::is_enabled()) return part(inputs);
  auto kept = c10::make_intrusive<Part>();
  kept->run = std::move(part);
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  return CheckpointFunction::apply(anchor, at::TensorList(inputs), kept);
}

at::Tensor activation_checkpoint(std::function<at::Tensor(const at::Tensor& input)> part,
                                 const at::Tensor& input) {
  const auto on_list = [part = std::move(part)](const TensorList& inputs) {
    return TensorList{part(inputs.front())};
  };
  return activation_checkpoint(on_list, TensorList{input}).front();
}

bool is_in_checkpoint() { return RunningPart::is_within(); }

void at_end_of_backward(std::function<void()> then) {
  if (InnerPass::is_within()) return InnerPass::keep(std::move(then));
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(then));
}

}  // namespace paceline
