#pragma once

// Data parallelism in which the ranks divide what a model needs beside its activations, in the
// stages of ZeRO (Rajbhandari et al., 2020), for an ordinary module and loop:
//
//   optim::Adam optimizer(net->parameters(), {.lr = 1e-3});
//   auto model = fully_shard(net, group, optimizer);
//   ...
//   optimizer.zero_grad();
//   loss_of(model->forward(x)).backward();
//   optim::clip_grad_norm(optimizer, 1.0);
//   optimizer.step();
//
// Stage 1 divides the optimizer's state, and its step. Stage 2 divides gradients as well: each
// rank gets those of the part that it updates, while the backward pass runs, and `.grad` stays
// undefined: to read it is Error(kInvalid), also for LibTorch's own functions. Stage 3 keeps the
// parameters once a host, in memory that its ranks share: nothing is gathered there, what other
// hosts update comes once a host after each step, and a write to a parameter outside of a step ends
// the process, after a line that names it. With `divide_hosts` a host keeps a part of the
// parameters only: before an operation reads some, their unit comes from the other hosts, while the
// model computes with the one before. All of them give the bits of DistributedDataParallel with the
// whole step on every rank.
//
// fully_shard() returns a DistributedDataParallel: accumulation, unused and frozen parameters, tied
// weights, logical shards, join() and the replica guard are as there. Communication hooks need
// stage 1.
//
// Cost in memory, for P float32 parameters and Adam on W ranks, in bytes on each, beside
// activations: 16 P without; stage 1 8 P + 8 P / W; stage 2 4 P + 12 P / W; stage 3 12 P / W, and
// 4 P once a host, or, with `divide_hosts` on H hosts, 4 P / H and four units. Under stages 2 and 3
// a backward pass needs four units besides.

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/parallel/distributed_data_parallel.h"

namespace paceline {

struct FullyShardOptions {
  int stage = 3;                       // 1, 2 or 3
  std::size_t unit_bytes = 4U << 20U;  // of parameters whose gradients travel together; above 0
  // Units of your choice instead, such as block->parameters() of each block; parameters in none of
  // them get units by size. With stages 2 and 3.
  std::vector<std::vector<at::Tensor>> units = {};
  // With stage 3, on several hosts: each host keeps a part of the parameters instead of a copy, and
  // has units whole while operations read them (training/optim/divided_parameters.h).
  bool divide_hosts = false;
  DistributedDataParallelOptions data_parallel = {};
};

// `options.data_parallel`, for a wrapper that divides what the stage says. Error(kInvalid) for
// another stage, for units of nothing, and for chosen units in stage 1. The wrapper throws
// Error(kInvalid) for a chosen tensor that is not a parameter of the optimizer or is in two units.
DistributedDataParallelOptions sharded_options(optim::Optimizer& optimizer,
                                               const FullyShardOptions& options);

// Collective; before the optimizer's first step. `optimizer` must outlive what is returned and have
// all parameters of `module` that require gradients, and none of others. Errors are those of
// DistributedDataParallel; also kUnsupported for stage 3 where ranks of a host share no
// memory or hosts have different numbers of ranks, and kSystem, on every rank, where there is not
// room for the copy.
template <class Module>
DistributedDataParallel<Module> fully_shard(std::shared_ptr<Module> module,
                                            std::shared_ptr<ProcessGroup> group,
                                            optim::Optimizer& optimizer,
                                            const FullyShardOptions& options = {}) {
  return {std::move(module), std::move(group), sharded_options(optimizer, options)};
}
// For LibTorch's module holders (TORCH_MODULE).
template <class Module>
DistributedDataParallel<Module> fully_shard(const torch::nn::ModuleHolder<Module>& holder,
                                            std::shared_ptr<ProcessGroup> group,
                                            optim::Optimizer& optimizer,
                                            const FullyShardOptions& options = {}) {
  return {holder.ptr(), std::move(group), sharded_options(optimizer, options)};
}

// A module whose parameters the ranks of a host have once from its construction on, for models of
// which one rank has room for a copy and not every rank for its own:
//
//   auto net = build_once(group, [] { return std::make_shared<Net>(); });
//   optim::Adam optimizer(net->parameters(), {.lr = 1e-3});
//   auto model = fully_shard(net, group, optimizer);  // stage 3
//
// The ranks of a host build one after the other, each with its own random numbers as always, so
// that every rank's generator ends in the usual state. The first rank's values are kept, in memory
// that all of them read, and every other rank drops its own at once. All hosts have rank 0's
// values, as in DistributedDataParallel. So a host never has more than two copies: this one and
// that of the rank which builds, or of fully_shard(), which moves it.
//
// Parameters can only be read until fully_shard() has divided them: a write ends the process after
// a line that names the parameter (OneCopy). Buffers are each rank's own.

// Builds in each rank's turn and moves the parameters of the module that `build` returns.
// Collective; `build` must not communicate. In a group of one nothing moves. When `build` throws on
// one rank, the group is aborted with its reason. Error(kInvalid) when ranks build different
// parameters or some that are not dense tensors on the CPU; errors of OneCopy.
void build_in_turns(ProcessGroup& group,
                    const std::function<std::shared_ptr<torch::nn::Module>()>& build);

template <class Module>
std::shared_ptr<torch::nn::Module> module_of(const std::shared_ptr<Module>& module) {
  return module;
}
template <class Module>
std::shared_ptr<torch::nn::Module> module_of(const torch::nn::ModuleHolder<Module>& holder) {
  return holder.ptr();
}

// Returns the result of `make`, a std::shared_ptr to a module or a holder (TORCH_MODULE). Otherwise
// as build_in_turns().
template <class Make>
auto build_once(const std::shared_ptr<ProcessGroup>& group, const Make& make) {
  std::invoke_result_t<const Make&> module{nullptr};
  build_in_turns(*group, [&] {
    module = make();
    return module_of(module);
  });
  return module;
}

}  // namespace paceline
