#pragma once

// The common part of all calls on branches: runs a branch's function with its name in errors, and
// checks that all ranks make the same call before any of them continues.
//
// Thread safety: as ProcessGroup.

#include <functional>
#include <string>
#include <vector>

#include "paceline/training/autograd/parallel_branches.h"

namespace paceline {

struct BranchCall {
  const char* name = "";  // of the function
  const std::vector<Branch>& branches;
  const std::vector<int>* owner = nullptr;  // null: the call has none
  std::vector<at::Tensor> inputs = {};
};

// Runs the branch's function. Errors name rank and branch. The result is dense, on the CPU.
at::Tensor run_branch(const ProcessGroup& group, const Branch& branch,
                      const std::vector<at::Tensor>& inputs);
// Collective. Runs `work` and returns the results of every rank, in rank order. Throws on every
// rank when two ranks made different calls, a call is wrong, or `work` has thrown on one of them.
std::vector<std::vector<at::Tensor>> agree(ProcessGroup& group, const BranchCall& call,
                                           const std::function<std::vector<at::Tensor>()>& work);

}  // namespace paceline
