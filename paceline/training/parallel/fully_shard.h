#pragma once

// Data parallelism in which the ranks divide everything that a model needs except its activations,
// in the stages of ZeRO (Rajbhandari et al., 2020), for an ordinary module and loop:
//
//   optim::Adam optimizer(net->parameters(), {.lr = 1e-3});
//   auto model = fully_shard(net, group, optimizer);
//   ...
//   optimizer.zero_grad();
//   loss_of(model->forward(x)).backward();
//   optim::clip_grad_norm(optimizer, 1.0);
//   optimizer.step();
//
// Stage 0 divides nothing, so a program can choose the stage by a flag. Stage 1 divides the
// optimizer's state and its step. Stage 2 also divides gradients: while the backward pass runs,
// each rank gets the gradients of the part that it updates, and `.grad` stays undefined; reading it
// is Error(kInvalid), even in LibTorch's own functions. Stage 3 keeps one copy of the parameters
// per host, in memory that the host's ranks share: nothing is gathered within a host, and after
// each step the updates of other hosts are sent once to each host. A write outside of a step prints
// the parameter's name and ends the process. With `shard_across_hosts` each host keeps only a part
// of the parameters: before an operation reads a parameter, the parameter's unit (a group of
// parameters) arrives from the other hosts, while the model computes with the previous unit. On the
// CPU all stages give the same bits as DistributedDataParallel with the whole step on every rank.
//
// If the parameters are on CUDA devices, each rank keeps only its part of them in stage 3, on one
// host and on several, and units are gathered before operations read them.
//
// fully_shard() returns a DistributedDataParallel: gradient accumulation, unused and frozen
// parameters, tied weights, logical shards, join() and the replica guard work as usual.
// Communication hooks require stage 0 or 1.
//
// Memory in bytes on each rank, without activations, for P float32 parameters and Adam on W ranks:
// 16 P undivided; 8 P + 8 P / W in stage 1; 4 P + 12 P / W in stage 2; 12 P / W in stage 3, which
// also needs 4 P for each host or, with `shard_across_hosts` on H hosts, 4 P / H and four units for
// each host. On CUDA devices stage 3 needs 16 P / W, and room for the two largest units and for
// four of `unit_bytes`. In stages 2 and 3 a backward pass needs four more units.

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/parallel/distributed_data_parallel.h"

namespace paceline {

struct FullyShardOptions {
  int stage = 3;                       // 0, 1, 2 or 3; 0 is DistributedDataParallel
  std::size_t unit_bytes = 4U << 20U;  // parameter bytes per unit; above 0
  // Units that you choose yourself, such as block->parameters() for each block; all other
  // parameters are grouped into units by size. For stages 2 and 3.
  std::vector<std::vector<at::Tensor>> units = {};
  // For stage 3 on several hosts: each host keeps a part of the parameters instead of a copy, and a
  // unit is whole only while operations read it (docs/sharding.md), as always on CUDA devices.
  bool shard_across_hosts = false;
  DistributedDataParallelOptions data_parallel = {};
};

namespace detail {

// Returns `options.data_parallel`, set up for a wrapper of this stage. Error(kInvalid) for an
// unknown stage, units of 0 bytes, chosen units in stages 0 and 1, or shard_across_hosts without
// stage 3. The wrapper throws Error(kInvalid) for a chosen tensor that is not a parameter of the
// optimizer or is in two units.
DistributedDataParallelOptions sharded_options(optim::Optimizer& optimizer,
                                               const FullyShardOptions& options);

}  // namespace detail

// Collective; call it before the optimizer's first step. `optimizer` must outlive the result, and
// must have all parameters of `module` that require gradients and no parameters of other modules.
// Errors: those of DistributedDataParallel; in stage 3 also kUnsupported if the ranks of a host
// share no memory or hosts have different numbers of ranks (for parameters on the CPU), and
// kSystem, on every rank, if there is not enough memory for the copy, or on a device for the units.
template <class Module>
DistributedDataParallel<Module> fully_shard(std::shared_ptr<Module> module,
                                            std::shared_ptr<ProcessGroup> group,
                                            optim::Optimizer& optimizer,
                                            const FullyShardOptions& options = {}) {
  return {std::move(module), std::move(group), detail::sharded_options(optimizer, options)};
}
// For LibTorch's module holders (TORCH_MODULE).
template <class Module>
DistributedDataParallel<Module> fully_shard(const torch::nn::ModuleHolder<Module>& holder,
                                            std::shared_ptr<ProcessGroup> group,
                                            optim::Optimizer& optimizer,
                                            const FullyShardOptions& options = {}) {
  return {holder.ptr(), std::move(group), detail::sharded_options(optimizer, options)};
}

inline namespace internal {

// A common mistake: the state and the step of LibTorch's optimizers cannot be divided.
template <class Module>
int fully_shard(const Module& /*module*/, const std::shared_ptr<ProcessGroup>& /*group*/,
                torch::optim::Optimizer& /*optimizer*/, const FullyShardOptions& /*options*/ = {}) {
  static_assert(sizeof(Module) == 0,
                "fully_shard divides the state of Paceline's optimizers: write "
                "paceline::optim::Adam instead of torch::optim::Adam");
  return 0;
}
// Common mistakes: the optimizer or the group is missing.
template <class Module, class Given>
  requires(!std::is_convertible_v<Given&, FullyShardOptions>)
int fully_shard(const Module& /*module*/, const Given& /*given*/,
                const FullyShardOptions& /*options*/ = {}) {
  static_assert(sizeof(Module) == 0,
                "fully_shard also needs the group and the optimizer: write fully_shard(module, "
                "group, optimizer), with optim::Adam optimizer(module->parameters()) made before");
  return 0;
}
template <class Module>
int fully_shard(const Module& module, const FullyShardOptions& /*options*/ = {}) {
  return fully_shard(module, 0);
}

}  // namespace internal

namespace detail {

// Calls `build` on each rank of a host in turn, and moves the parameters of the module that it
// returns to the host's copy (build_once()). Collective; `build` must not communicate. In a group
// of one rank the parameters stay where they are. If `build` throws on one rank, the group is
// aborted, and the reason is reported. Error(kInvalid) when ranks build different parameters, or
// parameters that are not dense tensors on the CPU; errors of OneCopy.
void build_in_turns(GroupRef group,
                    const std::function<std::shared_ptr<torch::nn::Module>()>& build);

template <class Module>
std::shared_ptr<torch::nn::Module> module_of(const std::shared_ptr<Module>& module) {
  return module;
}
template <class Module>
std::shared_ptr<torch::nn::Module> module_of(const torch::nn::ModuleHolder<Module>& holder) {
  return holder.ptr();
}

}  // namespace detail

// Builds a module so that each host has only one copy of its parameters from the beginning, for
// models that are so large that a host has no room for a copy on every rank. Returns the result of
// `make`, a std::shared_ptr to a module or a holder (TORCH_MODULE). Collective; `make` must not
// communicate. If it throws on one rank, the group is aborted, and the reason is reported.
// Error(kInvalid) when ranks build different parameters, or parameters that are not dense tensors
// on the CPU.
//
//   auto net = build_once(group, [] { return std::make_shared<Net>(); });
//   optim::Adam optimizer(net->parameters(), {.lr = 1e-3});
//   auto model = fully_shard(net, group, optimizer);  // stage 3
//
// The ranks of a host build one after another, each with its own random numbers as usual, so every
// rank's generator ends in the usual state. The values of a host's first rank are kept in memory
// that all ranks of the host read; every other rank drops its own values immediately. All hosts get
// rank 0's values, as in DistributedDataParallel. So a host never has more than two copies: the
// shared one, and one more while a rank builds or fully_shard() moves the parameters.
//
// Until fully_shard() has divided the parameters, they can only be read: a write prints the name of
// the parameter and ends the process (OneCopy). Each rank has its own buffers.
template <class Make>
auto build_once(const std::shared_ptr<ProcessGroup>& group, const Make& make) {
  std::invoke_result_t<const Make&> module{nullptr};
  detail::build_in_turns(group, [&] {
    module = make();
    return detail::module_of(module);
  });
  return module;
}

}  // namespace paceline
