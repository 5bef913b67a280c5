#pragma once

// Independent branches of a model on different ranks: each rank computes the branches that it owns,
// and every rank gets all results.
//
//   std::vector<Branch> branches = {make_branch("1x1", one), make_branch("3x3", three), ...};
//   const auto owner = assign_branches(measure_branches(*group, {x}, branches), group->world_size());
//   auto y = torch::cat(parallel_branches(group, {x}, branches, owner), 1);   // as if y were local
//   ...
//   loss.backward();
//   share_branch_gradients(*group, branches, owner);
//   optimizer.step();
//
// What is before and after the branches is computed by every rank, with the same inputs and the
// same gradients of the results. In the backward pass the owner of a branch computes its gradients
// and broadcasts those of the inputs. They are added up in the order of one process, so every
// gradient has the bits of one process, whatever the owners, if a branch uses an input once. A
// branch whose results nobody uses has no backward pass.
//
// Parameters of a branch get their gradients on its owner only. Either all ranks take the owner's
// gradients, or only the owner updates the parameters and the others take them when they need them,
// before a checkpoint or a change of owners. Over another axis of a mesh, DistributedDataParallel
// averages gradients among ranks that own the same branches; share them after its backward pass.
//
// Each call draws one random number, from which each branch gets a seed of its own: random numbers
// do not depend on the owners, and afterwards the generators of all ranks stand at the same place.
//
// Results are contiguous, on the CPU. Each call costs a small exchange, and a broadcast for each
// result; the backward pass, two for each branch with one input. Memory: a rank keeps the
// activations of its own branches.
//
// Errors: one of a branch's function is thrown on every rank, with the names of rank and branch;
// ranks with other branches, owners or inputs get Error(kInvalid) that shows both sides. The group
// goes on after these. Where a branch's backward pass throws, the others get kAborted, with the
// names of the branches, once the exception leaves the function that holds the graph.
//
// Thread safety: that of ProcessGroup. The graph keeps the group alive.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/autograd/differentiable_collectives.h"

namespace paceline {

struct Branch {
  std::string name;  // for messages
  // One result. Must not change the inputs, nor use the group.
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> forward;
  std::vector<at::Tensor> parameters = {};
  std::vector<at::Tensor> buffers = {};
};

// Of a module holder whose forward() takes and returns one tensor.
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

// Collective. The results of all branches; owner[b] is the rank that computes branches[b].
// Gradients of gradients are Error(kUnsupported). One backward pass for each call.
std::vector<at::Tensor> parallel_branches(const GroupPtr& group,
                                          const std::vector<at::Tensor>& inputs,
                                          const std::vector<Branch>& branches,
                                          const std::vector<int>& owner);

// Collective. Every rank gets the owners' gradients of the branches' parameters, or none where the
// owner has none. Error(kInvalid) for a parameter of branches with different owners.
void share_branch_gradients(ProcessGroup& group, const std::vector<Branch>& branches,
                            const std::vector<int>& owner);
// Collective. Every rank gets the owners' values of the branches' parameters and buffers.
void share_branch_parameters(ProcessGroup& group, const std::vector<Branch>& branches,
                             const std::vector<int>& owner);

// Which rank computes which branch (parallel_branches.h), by measured cost.
//
// The costs are of computing alone: the time in which results and gradients travel is not in them.
//
// Thread safety: assign_branches() is a pure function; measure_branches() as ProcessGroup.

// The owner of each branch: the most expensive branch first, each to the rank with the least work
// so far; of equal ones the first branch, the lowest rank. The busiest rank has at most 4/3 of the
// least possible work. Error(kInvalid) for no ranks, a negative cost or one that is not finite.
std::vector<int> assign_branches(const std::vector<double>& costs, int num_ranks);

// Collective. Seconds of each branch, forward and backward: every rank runs all branches, once and
// `repeats` times more, and takes the fastest; the result is the mean of all ranks, the same on
// all. Gradients, buffers and random numbers stay as they were. Error(kInvalid) on every rank for a
// branch that throws, and for fewer than 1 repeat.
std::vector<double> measure_branches(ProcessGroup& group, const std::vector<at::Tensor>& inputs,
                                     const std::vector<Branch>& branches, int repeats = 3);

}  // namespace paceline
