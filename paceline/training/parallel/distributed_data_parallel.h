#pragma once

// DistributedDataParallel turns a LibTorch module into a replica that trains together with the
// replicas on the other ranks.

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/parallel/data_parallel_options.h"

namespace paceline {

class CommunicationHook;
class DataParallelState;
class Reducer;

namespace detail {

// Functions of DataParallelState, for code that does not see its definition.
std::shared_ptr<DataParallelState> make_state(std::shared_ptr<torch::nn::Module> module,
                                              std::shared_ptr<ProcessGroup> group,
                                              const DistributedDataParallelOptions& options);
Reducer& reducer_of(DataParallelState& state);
std::shared_ptr<void> no_sync(DataParallelState& state);
void set_requires_gradient_sync(DataParallelState& state, bool required);
void set_hook(DataParallelState& state, std::shared_ptr<CommunicationHook> hook);
void forget_gradients(DataParallelState& state);
void note_loss(DataParallelState& state, double loss);
double step_loss(const DataParallelState& state);

// Marks a forward pass: constructed before it, destroyed after it.
class ForwardPass {
 public:
  ForwardPass(DataParallelState& state, std::int64_t samples);
  ~ForwardPass();
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

 private:
  DataParallelState& state_;
  const bool is_shard_;
};

// The first dimension of the first tensor among a forward pass's arguments; usually the number of
// samples.
template <class... Args>
std::int64_t batch_size_of(const Args&... arguments) {
  std::int64_t size = 0;
  [[maybe_unused]] const auto look_at = [&size](const auto& argument) {
    if constexpr (std::is_base_of_v<at::TensorBase, std::decay_t<decltype(argument)>>) {
      if (size == 0 && argument.defined() && argument.dim() > 0) size = argument.size(0);
    }
  };
  (look_at(arguments), ...);
  return size;
}

}  // namespace detail

// Data parallelism for any torch::nn::Module, with the semantics of PyTorch's
// DistributedDataParallel: every rank has a replica, works on its own part of the batch, and takes
// the same step, because gradients are averaged over the ranks.
//
//   auto group = paceline::init_process_group();
//   paceline::DistributedDataParallel model(std::make_shared<Net>(), group);
//   ...
//   auto loss = torch::nll_loss(model->forward(batch.data), batch.target);
//   loss.backward();       // gradients are averaged in here
//   optimizer.step();
//
// The wrapper is used like a LibTorch module: `model->forward(x)`, `model.forward(x)` and
// `model(x)` are the same call. `->` returns this wrapper, which also has the functions that
// training loops call on a module (parameters(), train(), zero_grad(), ...). module() returns the
// module itself, whose own forward() does not involve the other ranks.
//
// The constructor checks that all ranks have the same parameters, and copies the parameters and
// buffers of rank 0 to every rank. Set memory formats and devices before you construct it. In a
// group of one rank nothing is communicated.
//
// A module may be on a CUDA device. If the group has no CUDA backend (cpu:paceline,cuda:nccl has
// one), gradients are reduced on copies in host memory (docs/data_parallel.md).
//
// After an exception in a backward pass, some gradients are averages and others are not; the next
// forward() drops them all. If every rank had the exception and caught it, training can continue.
// If only one rank had it, the other ranks are blocked in their backward pass, so do not catch the
// exception: let it end the process. If such a rank continues, it gets an Error at its next
// forward(), and the blocked ranks get one too.
//
// The wrapper is a handle, as LibTorch's module holders are: copies refer to the same model, so it
// can be assigned and returned.
//
// Thread safety: none; one thread trains.
template <class Module>
class DistributedDataParallel {
 public:
  // Collective. Error(kInvalid) when the models of the ranks differ, when no parameter requires a
  // gradient, or when the parameters are on several devices; kUnsupported when LibTorch does not
  // support their device.
  DistributedDataParallel(std::shared_ptr<Module> module, std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {})
      : module_(std::move(module)),
        state_(detail::make_state(module_, std::move(group), options)) {}
  // For LibTorch's module holders (TORCH_MODULE).
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder,
                          std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), std::move(group), options) {}

  // The module's forward(), with any arguments and any result. Error(kInvalid) inside
  // activation_checkpoint(), which would run its communication twice.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    const detail::ForwardPass pass(*state_, detail::batch_size_of(args...));
    return module_->forward(std::forward<Args>(args)...);
  }
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // Call the module's functions of the same names.
  std::vector<at::Tensor> parameters() const { return module_->parameters(); }
  auto named_parameters() const { return module_->named_parameters(); }
  std::vector<at::Tensor> buffers() const { return module_->buffers(); }
  auto named_buffers() const { return module_->named_buffers(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  bool is_training() const { return module_->is_training(); }
  // Drops the gradients, as the module's own zero_grad() does; with fully_shard() these include the
  // gradients that the optimizer has received.
  void zero_grad() {
    module_->zero_grad();
    detail::forget_gradients(*state_);
  }

  // While `required` is false, backward passes only add to the gradients, without communication;
  // the first pass after it is true again averages the sum. With batches of a DataLoader, pass
  // batch.ends_step before each forward pass.
  void set_requires_gradient_sync(bool required) {
    detail::set_requires_gradient_sync(*state_, required);
  }

  // Collective; call it between passes. Null restores the plain average. Error(kInvalid), on every
  // rank, for hooks with different names, and for a hook with logical shards or divided gradients.
  void register_comm_hook(std::shared_ptr<CommunicationHook> hook) {
    detail::set_hook(*state_, std::move(hook));
  }
  // For the loss of a whole step in a loop of your own: call note_loss() before each backward pass,
  // with the batch's loss (before loss scaling) times the batch's weight. step_loss() is the mean
  // of the noted losses of the last step over the ranks or the logical shards, the same on every
  // rank. It costs no extra communication.
  void note_loss(double loss) { detail::note_loss(*state_, loss); }
  double step_loss() const { return detail::step_loss(*state_); }
  // While the result lives, gradients are not communicated: they accumulate locally, and the first
  // backward pass after that averages the sum. Both the forward and the backward pass must run
  // while it lives:
  //
  //   const auto accumulating = model.no_sync();
  [[nodiscard]] std::shared_ptr<void> no_sync() { return detail::no_sync(*state_); }
  Module& module() { return *module_; }
  // For torch::save(model.module_ptr(), path), which writes the same file as torch::save(model,
  // path). It is enough that one rank saves, because all ranks have the same values.
  const std::shared_ptr<Module>& module_ptr() const { return module_; }
  DistributedDataParallel* operator->() { return this; }

 public:  // internal
  // Common mistakes: each is a compile-time error that shows what to write instead.
  explicit DistributedDataParallel(std::shared_ptr<Module> /*module*/) {
    static_assert(sizeof(Module) == 0,
                  "the group is missing: write DistributedDataParallel model(module, group), with "
                  "auto group = paceline::init_process_group()");
  }
  explicit DistributedDataParallel(const torch::nn::ModuleHolder<Module>& /*holder*/) {
    static_assert(sizeof(Module) == 0,
                  "the group is missing: write DistributedDataParallel model(module, group), with "
                  "auto group = paceline::init_process_group()");
  }
  DistributedDataParallel(const Module& /*module*/, const std::shared_ptr<ProcessGroup>& /*group*/,
                          const DistributedDataParallelOptions& /*options*/ = {})
    requires(std::is_base_of_v<torch::nn::Module, Module>)
  {
    static_assert(sizeof(Module) == 0,
                  "the wrapper shares the module with the program: give it std::make_shared<Net>() "
                  "or a holder (TORCH_MODULE), not the module itself");
  }

  DistributedDataParallel(const std::shared_ptr<Module>& /*module*/, const ProcessGroup& /*group*/,
                          const DistributedDataParallelOptions& /*options*/ = {}) {
    static_assert(sizeof(Module) == 0,
                  "the wrapper shares the group with the program: give it the pointer of "
                  "paceline::init_process_group(), not *group");
  }

  Reducer& reducer() { return detail::reducer_of(*state_); }
  DataParallelState& state() { return *state_; }

 private:
  std::shared_ptr<Module> module_;  // shared with the user
  std::shared_ptr<DataParallelState> state_;
};

// For torch::save(model, path). torch::load() reads such a file into the module itself.
template <class Module>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const DistributedDataParallel<Module>& model) {
  model.module_ptr()->save(archive);
  return archive;
}
template <class Module>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           DistributedDataParallel<Module>& /*model*/) {
  static_assert(
      sizeof(Module) == 0,
      "load into the module on every rank, before the wrapper is made: torch::load(module, "
      "path); a Checkpointer restores a model in training");
  return archive;
}

template <class Module>
DistributedDataParallel(std::shared_ptr<Module>, std::shared_ptr<ProcessGroup>)
    -> DistributedDataParallel<Module>;

}  // namespace paceline
