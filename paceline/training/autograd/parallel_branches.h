#pragma once

// Independent branches of a model on different ranks: each rank computes the branches that it owns,
// and every rank gets all results.
//
//   ParallelBranches branches(group, {make_branch("1x1", one), make_branch("3x3", three), ...},
//                             {x});                      // owners chosen by the branches' times
//   auto y = torch::cat(branches.forward({x}), 1);       // the same y on every rank
//   ...
//   loss.backward();
//   branches.share_gradients();
//   optimizer.step();
//
// Every rank computes the layers before and after the branches, with the same inputs and the same
// gradients of the results. In the backward pass the owner of a branch computes the branch's
// gradients and broadcasts the gradients of its inputs. These are added up in the order in which a
// single process would add them; so if a branch uses an input once, every gradient has the same
// bits as in a single process, whichever ranks own the branches. A branch whose result is not used
// has no backward pass.
//
// Parameters of a branch get their gradients on its owner only. Either all ranks copy the owner's
// gradients (share_gradients()), or only the owner updates the parameters, and the other ranks copy
// the parameters before a checkpoint or a change of owners (share_parameters()). On another axis of
// a device mesh, DistributedDataParallel averages gradients among ranks that own the same branches;
// in that case call share_gradients() after its backward pass.
//
// Each forward pass draws one random number and derives a seed for each branch from it: so random
// numbers do not depend on the owners, and afterwards the generators of all ranks have the same
// state.
//
// Results are contiguous and on the CPU. Each forward pass costs a small exchange and one broadcast
// for each result; its backward pass costs two broadcasts for each branch with one input. A rank
// keeps only the activations of its own branches in memory.
//
// Errors: an error of a branch's function is thrown on every rank, with the names of the rank and
// the branch. If ranks pass different branches, owners or inputs, Error(kInvalid) shows both calls.
// The group stays usable after these errors. If the backward pass of a branch throws, other ranks
// get kAborted with the names of the failed rank's branches, as soon as the unwinding of the
// exception has destroyed the graph, which the results and the loss keep alive.
//
// Thread safety: same as ProcessGroup. The autograd graph keeps the group alive.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/autograd/differentiable_collectives.h"

namespace paceline {

struct Branch {
  std::string name;  // for messages
  // Returns one tensor. Must neither change the inputs nor use the group.
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> forward;
  std::vector<at::Tensor> parameters = {};
  std::vector<at::Tensor> buffers = {};
};

// Makes a branch of a module holder whose forward() takes and returns one tensor.
template <class Module>
Branch make_branch(std::string name, Module module) {
  auto parameters = module->parameters(), buffers = module->buffers();
  return {.name = std::move(name),
          .forward =
              [module](const std::vector<at::Tensor>& inputs) mutable {
                return module->forward(inputs.at(0));
              },
          .parameters = std::move(parameters),
          .buffers = std::move(buffers)};
}

class ParallelBranches {
 public:
  // owner[b] is the rank that computes branches[b]. forward() and the share_ methods check that all
  // ranks passed the same owners.
  ParallelBranches(GroupPtr group, std::vector<Branch> branches, std::vector<int> owner);
  // Collective: measures the seconds of a forward and a backward pass of each branch on `inputs`,
  // and assigns the branches in order of decreasing time, each to the rank with the least work so
  // far; the busiest rank has at most 4/3 of the least possible work. Every rank runs all branches,
  // once to warm up and then `repeats` times. Gradients, buffers and random numbers are left
  // unchanged. Every rank throws the error of a branch, or Error(kInvalid) if `repeats` is below 1.
  ParallelBranches(GroupPtr group, std::vector<Branch> branches,
                   const std::vector<at::Tensor>& inputs, int repeats = 3);

  const std::vector<int>& owner() const { return owner_; }

  // Collective. Returns the results of all branches, in their order. Allows one backward pass for
  // each call. Gradients of gradients are Error(kUnsupported).
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) const;
  // Collective. Copies the gradients of the branches' parameters from the owners to every rank; a
  // gradient that is undefined on the owner becomes undefined. Error(kInvalid) for a parameter that
  // belongs to branches with different owners.
  void share_gradients() const;
  // Collective. Copies the branches' parameters and buffers from the owners to every rank.
  void share_parameters() const;

 private:
  GroupPtr group_;
  std::vector<Branch> branches_;
  std::vector<int> owner_;
};

}  // namespace paceline
