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
//     static auto make(const Arguments& a) { return torch::nn::Linear(64, a.classes); }
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
// forward() is a call to the owner, which computes the outputs and, if gradients are needed, keeps
// the graph: a *pass*. The caller's graph gets a node that refers to the pass; backward() calls the
// owner, which computes the gradients of the inputs and keeps those of the weights. The owner drops
// the pass once the caller's graph is destroyed, or when the caller has not been heard from for the
// duration of a lease. Passes are independent: several passes on one or more workers may be open at
// once, each with its own gradients. If a worker's module contains a remote module, a backward pass
// through it calls that module's owner in turn.
//
// A pass computes with the current weights. If another worker's optimizer takes a step between a
// forward and its backward pass, the backward pass uses the new weights, as in Hogwild; a step
// never takes place during a computation. Apart from that, gradients are bitwise equal to those of
// a single process.
//
// RemoteModule is a torch::nn::Module without parameters of its own; train() and eval() set the
// mode of the passes through it. It can be a field of a message (a received module begins in
// training mode); copies refer to the same object. tensor_field.h describes how tensors are sent.
//
// Errors: rpc::CallError and rpc::ReferenceError of the calls, also from backward();
// Error(kInvalid) for a second backward pass through a graph that was not retained;
// Error(kUnsupported) for create_graph.
//
// Thread safety: several threads may run forward and backward passes, as with LibTorch's own
// modules.

#include <chrono>
#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "paceline/engine/rpc/workers.h"
#include "paceline/training/remote/tensor_field.h"
#include "paceline/training/remote/typeless_module.h"

namespace paceline::remote {

class ServedModule;

class RemoteModuleImpl : public torch::nn::Module {
 public:
  // A forward pass that has been started.
  class RunningForward {
   public:
    ~RunningForward();
    RunningForward(RunningForward&&) noexcept;
    RunningForward& operator=(RunningForward&&) noexcept;
    // Waits for the outputs. Call it once.
    Tensors get();

   private:
    friend class RemoteModuleImpl;
    struct Impl;
    explicit RunningForward(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };

  RemoteModuleImpl() = default;  // refers to no module

  // The worker that has the module. Requires: this object refers to a module.
  const std::string& owner() const { return reference_.owner(); }
  // Sets the deadline of later calls; by default JoinOptions::deadline applies.
  void set_deadline(std::chrono::milliseconds deadline) { options_.deadline = deadline; }

  // For modules that take and return one tensor.
  at::Tensor forward(const at::Tensor& input);  // not const, for torch::nn::Sequential
  // For any module: takes the tensors of its forward() and returns the resulting tensors; tuples
  // are returned as lists.
  Tensors forward_all(Tensors inputs) const;
  // Like forward_all(), without waiting. Passes through the same module begin in the order of these
  // calls.
  RunningForward start(Tensors inputs) const;

  // state() returns copies of parameters and buffers; load_state() sets those with the given names.
  std::map<std::string, at::Tensor> state() const;
  void load_state(const std::map<std::string, at::Tensor>& tensors) const;

 public:  // internal
  explicit RemoteModuleImpl(rpc::RemoteRef<ServedModule> reference);
  const rpc::RemoteRef<ServedModule>& reference() const { return reference_; }

 private:
  const rpc::RemoteRef<ServedModule> reference_;
  rpc::CallOptions options_;
};

// A reference to a RemoteModuleImpl. As with a pointer, `const` applies only to the reference.
class RemoteModule : public torch::nn::ModuleHolder<RemoteModuleImpl> {
 public:
  using Impl = RemoteModuleImpl;
  using torch::nn::ModuleHolder<RemoteModuleImpl>::ModuleHolder;
  RemoteModuleImpl* operator->() const { return ptr().get(); }
};

// Lets other workers use modules of this worker, and construct optimizers of the types in
// distributed_optimizer.h for them. Call it once on each worker that has modules.
void serve_modules(rpc::Workers& workers);

namespace detail {
RemoteModule share(rpc::Workers& workers, TypelessModule module);
}

// Returns a reference to a module of this worker (a ModuleHolder or a shared_ptr), which can be
// sent to other workers. References keep the module alive; its parameters must not be replaced.
template <class M>
RemoteModule share(rpc::Workers& workers, const torch::nn::ModuleHolder<M>& module) {
  return detail::share(workers, detail::typeless(module.ptr()));
}
template <std::derived_from<torch::nn::Module> M>
RemoteModule share(rpc::Workers& workers, const std::shared_ptr<M>& module) {
  return detail::share(workers, detail::typeless(module));
}

// ---- modules that other workers create ----

namespace detail {

template <class T>
struct MakeModule {
  inline static const std::string_view kName =
      rpc::detail::full_method_name("paceline.make", T::kName);
  static constexpr rpc::Effect kEffect = rpc::Effect::kOnce;
  using Request = typename T::Arguments;
  struct Reply {
    RemoteModule module;
    static auto fields(auto& m) { return std::tie(m.module); }
  };
};

}  // namespace detail

// Lets other workers create modules of a type on this worker. `workers` must outlive the calls.
template <class T>
void serve(rpc::Workers& workers) {
  workers.serve<detail::MakeModule<T>>(
      [&workers](const typename T::Arguments& arguments, rpc::Context&) {
        return typename detail::MakeModule<T>::Reply{share(workers, T::make(arguments))};
      });
}

// Creates a module on a worker that serves its type.
template <class T>
RemoteModule create(rpc::Workers& workers, const std::string& worker,
                    typename T::Arguments arguments = {}) {
  return workers.call<detail::MakeModule<T>>(worker, std::move(arguments)).get().module;
}

}  // namespace paceline::remote

namespace paceline::rpc::detail {

template <>
struct FieldCodec<remote::RemoteModule> {
  static constexpr FieldKind kKind = FieldKind::kMessage;
  static constexpr std::size_t kMinBytes = 4;
  static void write(MessageWriter& out, const remote::RemoteModule& module);
  static void read(MessageReader& in, remote::RemoteModule& module);
};

}  // namespace paceline::rpc::detail
