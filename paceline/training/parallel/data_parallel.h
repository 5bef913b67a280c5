#pragma once

// DataParallel: replicas of a module in threads of one process, on CUDA devices or on the CPU.
// ModuleReplicas manages the replicas and ReplicaThreads the threads; neither depends on the type
// of the module.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

namespace paceline {

namespace detail {

class ReplicaThreads;
struct ReplicaSet;

using ReplicaTensors = std::vector<at::Tensor>;
// The forward pass of one replica.
using ReplicaForward =
    std::function<ReplicaTensors(torch::nn::Module& replica, const ReplicaTensors& inputs)>;

// Copies of a module that process parts of a batch at the same time, in threads of this process.
// Replicas on the module's device use the module's own parameters; other devices have copies.
//
// The forward passes of all replicas are one node of the autograd graph. Its backward pass runs the
// replicas' backward passes, also at the same time, and adds up each parameter's gradients in a
// fixed order: a balanced tree over the replicas, split at the largest power of two, as the engine
// does for sums over ranks.
//
// On each CUDA device, all work of a forward pass and of its backward pass is queued on the stream
// that was the caller's current one in the forward pass; LibTorch's copies between two devices wait
// for both streams. So no event is needed, and freed memory is reused in stream order.
//
// Thread safety: none; one thread uses the object. Its graphs may outlive it.
class ModuleReplicas {
 public:
  // One replica for each device. Errors of DataParallel's constructors; Error(kInvalid) also for a
  // module whose clone() has another type, or other parameters or buffers.
  ModuleReplicas(std::shared_ptr<torch::nn::Module> module, std::vector<c10::Device> devices);

  // Cuts each input along dim 0 as at::chunk() does, gives each replica its parts, and concatenates
  // the replicas' outputs along dim 0, on the first device; outputs without dimensions are combined
  // into a vector. Undefined inputs are passed to every replica. If there is only one part, the
  // module itself runs. Error(kInvalid) unless the module is on the first device.
  ReplicaTensors forward(ReplicaTensors inputs, const ReplicaForward& forward);
  int num_replicas() const { return static_cast<int>(devices_.size()); }

 private:
  std::shared_ptr<ReplicaSet> make_set() const;
  std::shared_ptr<ReplicaSet> take_set();
  void follow_module(ReplicaSet& set, std::size_t replica, const ReplicaTensors& parameters,
                     const ReplicaTensors& buffers) const;

  const std::shared_ptr<torch::nn::Module> module_;  // shared with the user
  const std::vector<c10::Device> devices_;           // [replica]
  const std::shared_ptr<ReplicaThreads> threads_;    // shared with the graphs
  // Each set is shared with the graph that uses it; a set that no graph uses is reused in the next
  // pass.
  std::vector<std::shared_ptr<ReplicaSet>> sets_;
};

// Error(kInvalid) for fewer than one replica.
std::vector<c10::Device> replicas_on_cpu(int num_replicas);

template <class T>
inline constexpr bool is_tensor = std::is_base_of_v<at::TensorBase, std::decay_t<T>>;

// Returns an argument for a replica: the replica's next tensor, or a value that all replicas get.
template <class Argument>
std::conditional_t<is_tensor<Argument>, at::Tensor, const Argument&> argument_of_replica(
    const Argument& argument, const ReplicaTensors& tensors, std::size_t& next) {
  if constexpr (is_tensor<Argument>) {
    return tensors[next++];
  } else {
    return argument;
  }
}

// Converts the result of a module's forward(), which is a tensor or a vector or tuple of tensors,
// to a list and back.
template <class Result>
struct ReplicaResult {
  static ReplicaTensors to_list(const Result& result) {
    return std::apply([](const auto&... tensors) { return ReplicaTensors{tensors...}; }, result);
  }
  static Result from_list(const ReplicaTensors& list) {
    return from_list(list, std::make_index_sequence<std::tuple_size_v<Result>>());
  }

 private:
  template <std::size_t... I>
  static Result from_list(const ReplicaTensors& list, std::index_sequence<I...> /*indices*/) {
    return Result(list[I]...);
  }
};
template <>
struct ReplicaResult<at::Tensor> {
  static ReplicaTensors to_list(const at::Tensor& result) { return {result}; }
  static at::Tensor from_list(const ReplicaTensors& list) { return list.front(); }
};
template <>
struct ReplicaResult<ReplicaTensors> {
  static ReplicaTensors to_list(const ReplicaTensors& result) { return result; }
  static ReplicaTensors from_list(const ReplicaTensors& list) { return list; }
};

}  // namespace detail

// Data parallelism within one process, with the semantics of PyTorch's DataParallel: replicas of a
// module run in threads, each on its part of the batch, on CUDA devices or on the CPU.
//
//   paceline::DataParallel<Net> model(net, {{torch::kCUDA, 0}, {torch::kCUDA, 1}});
//   paceline::DataParallel<Net> model(net, 2);  // on the CPU
//   auto output = model(input);       // two replicas, each with half of the samples
//   loss(output).backward();          // the gradients are in the module's own parameters
//
// Each forward pass cuts every tensor among the arguments along dim 0 into equal parts (as
// torch::chunk: the last part may be smaller, and few samples result in fewer parts), passes all
// other arguments to every replica, and concatenates the outputs along dim 0. Replicas on the
// module's device share its parameters. At the beginning of a pass all replicas have the module's
// buffers; afterwards the first replica's changes to buffers are kept, and those of other replicas
// are dropped. In the backward pass each parameter gets the sum of its gradients over all replicas,
// in a fixed order.
//
// With CUDA devices, replica i works on device i, on the stream that was the caller's current one
// in the forward pass. In each pass the module must be on the first device, which also gets the
// outputs; inputs may be on any device. Each pass copies the parameters and buffers to the other
// devices. As in PyTorch, a device may be listed twice. forward() must not queue work on other
// streams. An error in a backward pass names the devices, but not the replica.
//
// The module must have a clone(): derive it from torch::nn::Cloneable. In each pass the replicas
// follow the module's registered parameters and buffers; other members keep the values that they
// had when they were cloned. All replicas draw random numbers from one generator, in an order that
// changes from run to run, so two runs with dropout differ. Second derivatives are not supported.
// The graph of a pass is kept until its outputs are destroyed.
//
// One process can use all cores without this class, because LibTorch's operations have threads of
// their own. For speed, prefer DistributedDataParallel.
//
// Thread safety: none; one thread trains. The module's forward() runs in several threads, each with
// its own replica.
template <class Module>
class DataParallel {
 public:
  // One replica for each device. Error(kInvalid) for an empty list, devices of two types, a device
  // that does not exist, or a module that cannot be cloned; kUnsupported without CUDA.
  DataParallel(std::shared_ptr<Module> module, std::vector<c10::Device> devices)
      : module_(std::move(module)), replicas_(module_, std::move(devices)) {}
  // Replicas on the CPU. Error(kInvalid) for fewer than one, or a module that cannot be cloned.
  DataParallel(std::shared_ptr<Module> module, int num_replicas)
      : DataParallel(std::move(module), detail::replicas_on_cpu(num_replicas)) {}
  // For LibTorch's module holders (TORCH_MODULE).
  DataParallel(const torch::nn::ModuleHolder<Module>& holder, std::vector<c10::Device> devices)
      : DataParallel(holder.ptr(), std::move(devices)) {}
  DataParallel(const torch::nn::ModuleHolder<Module>& holder, int num_replicas)
      : DataParallel(holder.ptr(), num_replicas) {}

  // Runs the module's forward() on all replicas. At least one argument must be a tensor, and all
  // tensors must have the same number of samples (dim 0). The result is a tensor, or a vector or
  // tuple of tensors. An exception in a replica is thrown as an Error with the replica's number and
  // CUDA device, after all replicas have ended. Error(kInvalid) if a parameter or buffer is not on
  // the first device.
  template <class... Arguments>
  auto forward(const Arguments&... arguments) {
    using Result = std::decay_t<decltype(std::declval<Module&>().forward(arguments...))>;
    detail::ReplicaTensors tensors;
    const auto collect = [&tensors](const auto& argument) {
      if constexpr (detail::is_tensor<decltype(argument)>) tensors.push_back(argument);
    };
    (collect(arguments), ...);
    const auto run = [&](torch::nn::Module& replica, const detail::ReplicaTensors& own) {
      std::size_t next = 0;
      // The braces guarantee that the elements are evaluated from left to right.
      const std::tuple<decltype(detail::argument_of_replica(arguments, own, next))...> mine{
          detail::argument_of_replica(arguments, own, next)...};
      auto& module = dynamic_cast<Module&>(replica);
      return detail::ReplicaResult<Result>::to_list(
          std::apply([&](const auto&... values) { return module.forward(values...); }, mine));
    };
    return detail::ReplicaResult<Result>::from_list(replicas_.forward(tensors, run));
  }
  template <class... Arguments>
  auto operator()(const Arguments&... arguments) {
    return forward(arguments...);
  }

  // Returns module().parameters(). The functions below also call the module's functions.
  std::vector<at::Tensor> parameters() const { return module_->parameters(); }
  auto named_parameters() const { return module_->named_parameters(); }
  std::vector<at::Tensor> buffers() const { return module_->buffers(); }
  auto named_buffers() const { return module_->named_buffers(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  bool is_training() const { return module_->is_training(); }
  void zero_grad() { module_->zero_grad(); }

  int num_replicas() const { return replicas_.num_replicas(); }
  Module& module() { return *module_; }
  // For torch::save(model.module_ptr(), path).
  const std::shared_ptr<Module>& module_ptr() const { return module_; }
  DataParallel* operator->() { return this; }

 private:
  const std::shared_ptr<Module> module_;  // shared with the user
  detail::ModuleReplicas replicas_;
};

// For torch::save(model, path). torch::load() reads such a file into the module itself.
template <class Module>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const DataParallel<Module>& model) {
  model.module_ptr()->save(archive);
  return archive;
}
template <class Module>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           DataParallel<Module>& /*model*/) {
  static_assert(
      sizeof(Module) == 0,
      "load into the module on every rank, before the wrapper is made: torch::load(module, "
      "path); a Checkpointer restores a model in training");
  return archive;
}

template <class Module>
DataParallel(std::shared_ptr<Module>, int) -> DataParallel<Module>;
template <class Module>
DataParallel(std::shared_ptr<Module>, std::vector<c10::Device>) -> DataParallel<Module>;

}  // namespace paceline
