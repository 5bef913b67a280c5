#pragma once

// Modules on other workers.
//
//   // on the worker that has the module ("tail0")
//   remote::serve_modules(*workers);
//   struct Tail {                                   // a module that others may create
//     static constexpr std::string_view kName = "tail";
//     struct Arguments {
//       int classes = 10;
//       static auto fields(auto& m) { return std::tie(m.classes); }
//     };
//     static torch::nn::Linear make(const Arguments& a) { return {64, a.classes}; }
//   };
//   remote::serve<Tail>(*workers);
//
//   // on a trainer
//   auto tail = remote::create<Tail>(*workers, "tail0", {.classes = 10});
//   remote::DistributedOptimizer optimizer(*workers, {tail}, remote::SGD{.lr = 0.1},
//                                          head->parameters());
//   auto loss = torch::nll_loss(tail->forward(head->forward(images)), labels);
//   loss.backward();
//   optimizer.step(loss);
//
// forward() is a call to the owner, which computes and, if gradients are wanted, keeps the graph.
// The graph of the caller gets a node that refers to this *pass*; backward() calls the owner, which
// computes the gradients of the inputs and, for itself, of the weights. Nothing is kept once the
// caller's graph is gone, or the caller has not been heard of for a lease. Passes are independent:
// several of one or of many workers may be open at once, each with its gradients. A worker that
// has a remote module in its own modules passes the backward on.
//
// A pass computes with the weights of the moment. If another worker's optimizer steps between its
// forward and its backward, the backward sees the new weights, as in Hogwild; a step never happens
// within a computation. One process's backward has the same bits.
//
// RemoteModule is a torch::nn::Module without parameters of its own; train() and eval() set the
// mode of the passes that are made through it. It is a field of a message (the receiver's begins in
// training mode), and copies share it. Tensors travel as tensor_field.h says.
//
// Errors: rpc::CallError and rpc::ReferenceError of the calls, also out of backward();
// Error(kInvalid) for a second backward over a graph that was not retained; Error(kUnsupported) for
// create_graph.
//
// Thread safety: forward passes and backward passes, as far as LibTorch's own.

#include <chrono>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "paceline/engine/rpc/workers.h"
#include "paceline/training/remote/served_module.h"

namespace paceline::remote {

// A forward pass under way.
class RunningForward {
 public:
  ~RunningForward();
  RunningForward(RunningForward&&) noexcept;
  RunningForward& operator=(RunningForward&&) noexcept;
  // Waits for the outputs. Once.
  Tensors get();

 private:
  friend class RemoteModuleImpl;
  struct Impl;
  explicit RunningForward(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class RemoteModuleImpl : public torch::nn::Module {
 public:
  RemoteModuleImpl() = default;  // refers to nothing
  explicit RemoteModuleImpl(rpc::RemoteRef<ServedModule> reference);

  // The worker that has the module. Requires: it refers to one.
  const std::string& owner() const { return reference_.owner(); }
  // Of calls from here on; JoinOptions::deadline if not set.
  void set_deadline(std::chrono::milliseconds deadline) { options_.deadline = deadline; }

  // For modules that take and return one tensor.
  at::Tensor forward(const at::Tensor& input);  // not const, for torch::nn::Sequential
  // For any module: what its forward() takes and returns, tuples as lists.
  Tensors forward_all(Tensors inputs) const;
  // As forward_all(), without waiting. Passes of one worker begin in the order of these calls.
  RunningForward start(Tensors inputs) const;

  // Parameters and buffers as they are now; and the way back, for those that are named.
  std::vector<NamedTensor> state() const;
  void load_state(std::vector<NamedTensor> tensors) const;

  const rpc::RemoteRef<ServedModule>& reference() const { return reference_; }

 private:
  const rpc::RemoteRef<ServedModule> reference_;
  rpc::CallOptions options_;
};

// Refers to a RemoteModuleImpl, as a pointer does: what is const is the reference.
class RemoteModule : public torch::nn::ModuleHolder<RemoteModuleImpl> {
 public:
  using Impl = RemoteModuleImpl;
  using torch::nn::ModuleHolder<RemoteModuleImpl>::ModuleHolder;
  RemoteModuleImpl* operator->() const { return ptr().get(); }
};

// Lets others use modules of this worker, and make optimizers of the types in optimizers.h for
// them. Once for each worker that has modules.
void serve_modules(rpc::Workers& workers);

// A reference to a module of this worker (a ModuleHolder or a shared_ptr), to be sent to others.
// The module stays alive as long as references to it. Its parameters must not be replaced.
RemoteModule share(rpc::Workers& workers, TypelessModule module);
template <class M>
RemoteModule share(rpc::Workers& workers, const torch::nn::ModuleHolder<M>& module) {
  return share(workers, typeless(module.ptr()));
}
template <std::derived_from<torch::nn::Module> M>
RemoteModule share(rpc::Workers& workers, const std::shared_ptr<M>& module) {
  return share(workers, typeless(module));
}

// ---- modules that others create ----

template <class T>
struct MakeModule {
  inline static const std::string_view kName = rpc::full_method_name("paceline.make", T::kName);
  static constexpr rpc::Effect kEffect = rpc::Effect::kOnce;
  using Request = typename T::Arguments;
  struct Reply {
    RemoteModule module;
    static auto fields(auto& m) { return std::tie(m.module); }
  };
};

// Lets others create modules of a type. `workers` must outlive the calls.
template <class T>
void serve(rpc::Workers& workers) {
  workers.serve<MakeModule<T>>([&workers](const typename T::Arguments& arguments, rpc::Context&) {
    return typename MakeModule<T>::Reply{share(workers, T::make(arguments))};
  });
}

// Makes a module on a worker that serves its type.
template <class T>
RemoteModule create(rpc::Workers& workers, const std::string& worker,
                    typename T::Arguments arguments = {}) {
  return workers.call<MakeModule<T>>(worker, std::move(arguments)).get().module;
}

}  // namespace paceline::remote

namespace paceline::rpc {

template <>
struct FieldCodec<remote::RemoteModule> {
  static constexpr FieldKind kKind = FieldKind::kMessage;
  static constexpr std::size_t kLeast = 4;
  static void write(MessageWriter& out, const remote::RemoteModule& module);
  static void read(MessageReader& in, remote::RemoteModule& module);
};

}  // namespace paceline::rpc
