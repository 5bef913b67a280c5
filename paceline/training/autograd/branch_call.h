#pragma once

// What the calls on branches share: a branch's function is run with its name in its errors, and
// ranks tell each other what they were asked for before any of them goes on.
//
// Thread safety: that of ProcessGroup.

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

// Its errors name rank and branch. The result is dense, on the CPU.
at::Tensor run_branch(const ProcessGroup& group, const Branch& branch,
                      const std::vector<at::Tensor>& inputs);
// Collective. What `work` returned on every rank, in rank order. Throws on every rank where they
// made different calls, where the call is wrong and where `work` has thrown.
std::vector<std::vector<at::Tensor>> agree(ProcessGroup& group, const BranchCall& call,
                                           const std::function<std::vector<at::Tensor>()>& work);

}  // namespace paceline
