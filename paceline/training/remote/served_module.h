#pragma once

// The owner's end of a remote module: the served module, its passes with their messages, and the
// lock of its weights.
//
// Thread safety: any thread may call the functions, except as noted below.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/remote_ref.h"
#include "paceline/training/remote/tensor_field.h"
#include "paceline/training/remote/typeless_module.h"
#include "paceline/training/tensor/current_error.h"

namespace paceline::remote {

// Separates optimizer steps from the passes of a shared module: passes may read its weights at the
// same time; a step waits for them and then has exclusive access to the weights. While a pass waits
// for another worker, it releases its read lock (WeightsLent). So passes and steps of several
// workers never deadlock, and a step takes place between computations, never during one.
class WeightsLock {
 public:
  // begin_pass() and begin_step() return false if the deadline passed first. A waiting step takes
  // precedence over passes that arrive later.
  bool begin_pass(Deadline deadline);
  void end_pass();
  bool begin_step(Deadline deadline);
  void end_step();

 private:
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int num_passes_ = 0, num_waiting_steps_ = 0;
  bool is_stepping_ = false;
};

// A guard for the time in which this thread computes with the weights. Throws Error(kTimeout) if a
// step is still running at the deadline.
class WeightsInUse {
 public:
  WeightsInUse(WeightsLock& lock, Deadline deadline);
  ~WeightsInUse();
  WeightsInUse(const WeightsInUse&) = delete;
  WeightsInUse& operator=(const WeightsInUse&) = delete;

 private:
  WeightsLock& lock_;
  WeightsLock* const outer_;
};

// A guard for the time in which this thread changes the weights. Throws Error(kTimeout) if passes
// are still computing with the weights at the deadline.
class WeightsInStep {
 public:
  WeightsInStep(WeightsLock& lock, Deadline deadline);
  ~WeightsInStep() { lock_.end_step(); }
  WeightsInStep(const WeightsInStep&) = delete;
  WeightsInStep& operator=(const WeightsInStep&) = delete;

 private:
  WeightsLock& lock_;
};

// A guard for the time in which this thread waits for another worker: until it is destroyed, this
// thread's WeightsInUse, if it has one, does not lock the weights.
class WeightsLent {
 public:
  WeightsLent();
  ~WeightsLent();
  WeightsLent(const WeightsLent&) = delete;
  WeightsLent& operator=(const WeightsLent&) = delete;

 private:
  WeightsLock* const lock_;
};

class ServedModule;
class Token;
using detail::TypelessModule;

// Converts LibTorch's errors to Paceline's, without the backtrace, which is of no use to another
// worker.
template <class Body>
auto plain_errors(Body body) {
  try {
    return body();
  } catch (const c10::Error&) {
    throw current_error();
  }
}

struct ForwardRequest {
  Tensors inputs;
  std::vector<std::uint8_t> require_grad;  // [input]
  bool is_training = true;
  rpc::ObjectNumber kept = 0;  // the pass to keep; 0: no gradients are needed
  static auto fields(auto& m) { return std::tie(m.inputs, m.require_grad, m.is_training, m.kept); }
};
struct ForwardReply {
  Tensors outputs;
  std::vector<std::uint8_t> require_grad;  // [output]; empty if no pass was kept
  static auto fields(auto& m) { return std::tie(m.outputs, m.require_grad); }
};

struct BackwardRequest {
  Tensors gradients;  // for the outputs that require them; undefined: zero
  bool retains = false;
  static auto fields(auto& m) { return std::tie(m.gradients, m.retains); }
};
// The worker that keeps a pass, and the pass's number there.
struct PassAt {
  std::string owner;
  rpc::ObjectNumber number = 0;
  static auto fields(auto& m) { return std::tie(m.owner, m.number); }
};
struct BackwardReply {
  Tensors gradients;           // for the inputs that require them
  std::vector<PassAt> nested;  // in the order in which one process would add their gradients
  static auto fields(auto& m) { return std::tie(m.gradients, m.nested); }
};

// The owner's end of a pass through a remote module: the graph of one forward pass, kept for the
// backward pass, and then the gradients of the weights, kept until an optimizer takes them. The
// worker that called forward() has a reference to the pass (engine/rpc/remote_ref.h). The pass is
// destroyed when that worker drops its graph or has not been heard from for a lease.
//
// Thread safety: any thread may call the functions. Calls to one pass run one at a time, in
// parallel with other passes of the same module.
class Pass {
 public:
  static constexpr std::string_view kName = "paceline.pass";
  // `inputs` and `outputs` are only those that require a gradient.
  Pass(std::shared_ptr<ServedModule> module, Tensors inputs, Tensors outputs);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Runs the backward pass of the module and of all passes nested in it. Throws Error(kInvalid) if
  // the graph was not retained.
  BackwardReply backward(const BackwardRequest& request, rpc::Context& context);
  static auto methods() {
    return std::tuple(rpc::method<&Pass::backward>("backward", rpc::Effect::kOnce));
  }

  // Moves the gradient of a parameter out of the pass; undefined if the parameter was not used.
  at::Tensor take_gradient(const at::Tensor& parameter);

 private:
  Tensors run_backward(const BackwardRequest& request, const Tensors& anchors);

  const std::shared_ptr<ServedModule> module_;
  const Tensors parameters_;
  Tensors inputs_, outputs_;                    // of the graph; empty once the graph was released
  std::vector<std::shared_ptr<Token>> nested_;  // found by the first backward pass

  std::mutex mutex_;  // guards the gradients
  std::unordered_map<const at::TensorImpl*, at::Tensor> gradients_;
};

// The number of passes that the workers of this process keep for other workers.
std::size_t num_kept_passes();

// A tensor and its name in the module ("layer1.0.conv1.weight").
struct NamedTensor {
  std::string name;
  at::Tensor value;
  static auto fields(auto& m) { return std::tie(m.name, m.value); }
};
struct ModuleState {
  std::vector<NamedTensor> tensors;
  static auto fields(auto& m) { return std::tie(m.tensors); }
};

// A module that its worker serves to others. Forward passes run one at a time, in the order in
// which they arrive, because they change the module's buffers, mode and members; backward passes
// (Pass) run in parallel with them.
//
// Thread safety: one call of forward(), state() or load_state() at a time; rpc never runs two calls
// of one object at once. Any thread may call the other methods.
class ServedModule : public std::enable_shared_from_this<ServedModule> {
 public:
  static constexpr std::string_view kName = "paceline.module";
  using Arguments = TypelessModule;
  explicit ServedModule(const TypelessModule& module);

  ForwardReply forward(const ForwardRequest& request, rpc::Context& context);
  // state() returns copies of parameters and buffers; load_state() sets those with the given names.
  ModuleState state(const rpc::Nothing& nothing, rpc::Context& context);
  rpc::Nothing load_state(const ModuleState& state, rpc::Context& context);
  // Returns once the constructor has ended.
  rpc::Nothing ready(const rpc::Nothing& nothing) { return nothing; }
  static auto methods() {
    using enum rpc::Effect;
    return std::tuple(rpc::method<&ServedModule::forward>("forward", kOnce),
                      rpc::method<&ServedModule::state>("state", kRepeatable),
                      rpc::method<&ServedModule::load_state>("load_state", kOnce),
                      rpc::method<&ServedModule::ready>("ready", kRepeatable));
  }

  const Tensors& parameters() const { return parameters_; }
  WeightsLock& weights() { return weights_; }

 private:
  at::Tensor to_send(const at::Tensor& output) const;

  const TypelessModule module_;
  const Tensors parameters_;
  const std::vector<NamedTensor> tensors_;  // parameters and buffers
  WeightsLock weights_;
};

}  // namespace paceline::remote
