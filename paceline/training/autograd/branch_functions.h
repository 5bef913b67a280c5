#pragma once

// The functions of ParallelBranches (parallel_branches.h), for branches and owners that are passed
// to each call. BranchCall and the functions below it are the common part of these calls; only this
// folder uses them. owner[b] is the rank that computes branches[b].
//
// Thread safety: same as ProcessGroup.

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/autograd/parallel_branches.h"

namespace paceline {

// Collective. Returns the results of all branches. Allows one backward pass for each call.
// Gradients of gradients are Error(kUnsupported).
std::vector<at::Tensor> parallel_branches(const GroupPtr& group,
                                          const std::vector<at::Tensor>& inputs,
                                          const std::vector<Branch>& branches,
                                          const std::vector<int>& owner);

// Collective. Copies the gradients of the branches' parameters from the owners to every rank; a
// gradient that is undefined on the owner becomes undefined. Error(kInvalid) for a parameter that
// belongs to branches with different owners.
void share_branch_gradients(GroupRef group, const std::vector<Branch>& branches,
                            const std::vector<int>& owner);
// Collective. Copies the branches' parameters and buffers from the owners to every rank.
void share_branch_parameters(GroupRef group, const std::vector<Branch>& branches,
                             const std::vector<int>& owner);

// Chooses the owner of each branch by cost: assigns the branches in order of decreasing cost, each
// to the rank with the least work so far; ties go to the first branch and to the lowest rank. The
// busiest rank has at most 4/3 of the least possible work. A pure function. Error(kInvalid) if
// num_ranks is below 1, or a cost is negative or not finite.
std::vector<int> assign_branches(const std::vector<double>& costs, int num_ranks);

// Collective. Measures the seconds of a forward and a backward pass of each branch, without the
// time to communicate results and gradients: every rank runs all branches, once to warm up and then
// `repeats` times, and takes the fastest time; the result is the mean over all ranks, the same on
// every rank. Gradients, buffers and random numbers are left unchanged. Every rank throws the error
// of a branch, or Error(kInvalid) if `repeats` is below 1.
std::vector<double> measure_branches(GroupRef group, const std::vector<at::Tensor>& inputs,
                                     const std::vector<Branch>& branches, int repeats = 3);

// A call on branches, for the check that all ranks make the same call.
struct BranchCall {
  const char* name = "";  // name of the called function, for errors
  const std::vector<Branch>& branches;
  const std::vector<int>* owner = nullptr;  // null: the function takes no owners
  std::vector<at::Tensor> inputs = {};
};

// Runs the branch's function. Errors begin with the rank and the branch's name. The result is dense
// and on the CPU.
at::Tensor run_branch(const ProcessGroup& group, const Branch& branch,
                      const std::vector<at::Tensor>& inputs);
// Collective. Runs `work` and returns the results of every rank, in rank order. Throws on every
// rank if two ranks made different calls, if a call is invalid, or if `work` threw on any rank.
std::vector<std::vector<at::Tensor>> agree(ProcessGroup& group, const BranchCall& call,
                                           const std::function<std::vector<at::Tensor>()>& work);

}  // namespace paceline
