#pragma once

// A module whose parameters the ranks of a host have once from its construction on, for models of
// which one rank has room for a copy and not every rank for its own:
//
//   auto net = build_once(group, [] { return std::make_shared<Net>(); });
//   optim::Adam optimizer(net->parameters(), {.lr = 1e-3});
//   auto model = fully_shard(net, group, optimizer);  // stage 3
//
// The ranks of a host build one after the other, each with its own random numbers as always, so
// that every rank's generator stands where it would stand; the first one's values are kept, in
// memory that all of them read, and every other rank's are dropped as soon as it has them. Rank
// 0's are those of all hosts, as in DistributedDataParallel. So a host never has more than two
// copies: this one and that of the rank which builds, or of fully_shard(), which moves it.
//
// Parameters can be read alone until fully_shard() has divided them: a write ends the process after
// a line that names the parameter (one_copy.h). Buffers are each rank's own.

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Builds in each rank's turn and moves the parameters of what `build` returns. Collective; `build`
// must not communicate. In a group of one nothing moves. When `build` throws on one rank, the group
// is aborted with its reason. Error(kInvalid) when ranks build different parameters or some that
// are not dense tensors on the CPU; errors of OneCopy.
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

// What `make` returns: a std::shared_ptr to a module, or a holder (TORCH_MODULE). As
// build_in_turns().
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
