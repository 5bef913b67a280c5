#pragma once

// DistributedDataParallel turns a LibTorch module into a replica that trains together with the
// replicas on the other ranks. DataParallelState is the part of it that does not depend on the type
// of the module.

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "paceline/training/parallel/reducer/lockstep.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/parallel/replica_guard.h"

namespace paceline {

// A module's buffers (BatchNorm's statistics) in a step with logical shards. The forward pass of
// every shard begins with the buffers from the beginning of the step, and the step ends with the
// buffers that the rank's first shard has produced. So rank 0 ends with the buffers of shard 0, and
// all ranks get them, for every number of ranks, even if parts of the model run again in the
// backward pass (activation_checkpoint()). A step has one forward pass for each shard.
//
// Thread safety: none.
class ShardBuffers {
 public:
  explicit ShardBuffers(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {}

  // Call begin_forward() and end_forward() around the forward pass of this rank's shard `index`,
  // and end_step() after the last backward pass.
  void begin_forward(std::int64_t index);
  void end_forward(std::int64_t index);
  void end_step();

 private:
  std::vector<at::Tensor> copy() const;
  void restore(const std::vector<at::Tensor>& values);

  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> at_start_, after_first_;
  bool is_unfinished_ = false;  // a step has begun and has not ended
};

// The part of DistributedDataParallel that does not depend on the module's type.
class DataParallelState {
 public:
  DataParallelState(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
                    const DistributedDataParallelOptions& options);

  DataParallelState(const DataParallelState&) = delete;  // the reducer refers to it
  DataParallelState& operator=(const DataParallelState&) = delete;

  // Marks a forward pass: constructed before it, destroyed after it.
  class Pass {
   public:
    Pass(DataParallelState& state, std::int64_t samples);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    DataParallelState& state_;
    const bool is_shard_;
  };
  Reducer& reducer() { return *reducer_; }
  ProcessGroup& group() { return *group_; }
  const std::shared_ptr<ProcessGroup>& shared_group() const { return group_; }

  // For join(): from now on each forward pass is announced through `inputs`; null: no pass is
  // announced.
  void set_uneven_inputs(UnevenInputs* inputs);
  // Collective: takes part in a pass of the other ranks for which this rank has no inputs.
  void pass_without_inputs(const UnevenInputs::Others& others);
  // Collective: copies the parameters and buffers of `rank` to every rank.
  void take_model_of(int rank);
  // Drops the gradients that the optimizer has received.
  void forget_gradients();

 private:
  void before_forward(std::int64_t samples);
  void end_step();
  void require_shards_apart() const;
  std::int64_t check_replicas_every() const;
  void require_one_copy(const std::vector<NamedParameter>& parameters) const;
  void shard_optimizer(const std::vector<NamedParameter>& parameters);
  void broadcast_parameters(int root);
  void broadcast_buffers(int root);
  void note_buffers();

  const std::shared_ptr<torch::nn::Module> module_;  // shared with the user
  const std::shared_ptr<ProcessGroup> group_;        // shared with the user
  const DistributedDataParallelOptions options_;
  std::vector<at::Tensor> parameters_;  // without duplicates
  std::vector<at::Tensor> buffers_;
  KeptTensors::Named named_buffers_;
  KeptTensors kept_buffers_;  // with hashes of the values that the last pass left
  UnevenInputs* uneven_inputs_ = nullptr;
  ShardBuffers shard_buffers_;
  bool buffers_may_differ_ = false;  // all ranks have trained since the last broadcast
  std::unique_ptr<Reducer> reducer_;
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
// It is used like a LibTorch module: `model->forward(x)`, `model.forward(x)` and `model(x)` are the
// same call. `->` returns this wrapper, which also has the functions that training loops call on a
// module (parameters(), train(), zero_grad(), ...). module() returns the module itself, whose own
// forward() does not involve the other ranks.
//
// The constructor checks that all ranks have the same parameters, and copies the parameters and
// buffers of rank 0 to every rank. Set memory formats and devices, and freeze parameters, before
// you construct it. In a group of one rank nothing is communicated.
//
// A module may be on a CUDA device. Without a CUDA backend (cpu:paceline,cuda:nccl) its gradients
// are reduced on copies in host memory (docs/data_parallel.md).
//
// After an exception in a backward pass, some gradients are averages and others are not; the next
// forward() drops them all. If every rank had the exception and caught it, training can continue.
// If only one rank had it, the other ranks are blocked in their backward pass, so do not catch the
// exception: let it end the process. If such a rank continues, it gets an Error at its next
// forward(), and so do the other ranks (Reducer::before_forward()).
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
        state_(std::make_shared<DataParallelState>(module_, std::move(group), options)) {}
  // For LibTorch's module holders (TORCH_MODULE).
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder,
                          std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), std::move(group), options) {}

  // The module's forward(), with any arguments and any result. Error(kInvalid) inside a
  // activation_checkpoint(), which would run its communication twice.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    const DataParallelState::Pass pass(*state_, batch_size_of(args...));
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
  // Drops the gradients, including those that an optimizer of fully_shard() has received; the
  // module's own zero_grad() does not reach these.
  void zero_grad() {
    module_->zero_grad();
    state_->forget_gradients();
  }

  // While it is false, backward passes only add to the gradients, without communication; the first
  // pass after it is true again averages the sum. With batches of a DataLoader, pass
  // batch.ends_step before each forward pass.
  void set_requires_gradient_sync(bool required) { state_->reducer().set_synchronize(required); }

  // Collective; call it between passes (Reducer::set_hook()).
  void register_comm_hook(std::shared_ptr<CommunicationHook> hook) {
    state_->reducer().set_hook(std::move(hook));
  }
  [[nodiscard]] NoSync no_sync() { return NoSync(state_->reducer()); }
  Module& module() { return *module_; }
  // For torch::save(model.module_ptr(), path), which writes the same file as torch::save(model,
  // path). It is enough that one rank saves, because all ranks have the same values.
  const std::shared_ptr<Module>& module_ptr() const { return module_; }
  DistributedDataParallel* operator->() { return this; }
  Reducer& reducer() { return state_->reducer(); }
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
