// What the owners of branches have, on every rank.

#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/training/autograd/branch_call.h"
#include "paceline/training/autograd/parallel_branches.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/model_share.h"

namespace paceline {
namespace {

using Tensors = std::vector<at::Tensor>;
using ByOwner = std::map<std::pair<int, at::ScalarType>, Tensors>;

void broadcast_all(ProcessGroup& group, const ByOwner& lists) {
  for (const auto& [key, tensors] : lists) broadcast_coalesced(group, tensors, key.first);
}

// A byte for each parameter.
at::Tensor which_have_gradients(const Branch& branch) {
  const at::Tensor have =
      at::zeros({static_cast<std::int64_t>(branch.parameters.size())}, at::kByte);
  std::uint8_t* next = have.data_ptr<std::uint8_t>();
  for (const at::Tensor& parameter : branch.parameters)
    *next++ = parameter.grad().defined() ? 1 : 0;
  return have;
}

// In the layout of the parameter, which is the same on every rank.
at::Tensor gradient_to_share(const at::Tensor& parameter, bool is_own) {
  at::Tensor& gradient = parameter.mutable_grad();
  const at::Tensor known = gradient;
  if (!known.defined() || known.strides() != parameter.strides()) {
    gradient = at::empty_like(parameter.detach());
    if (is_own) gradient.copy_(known);
  }
  return gradient;
}

}  // namespace

void share_branch_gradients(ProcessGroup& group, const std::vector<Branch>& branches,
                            const std::vector<int>& owner) {
  const auto all = agree(group, {"share_branch_gradients", branches, &owner}, [&] {
    Tensors have;
    for (std::size_t i = 0; i < branches.size(); ++i) {
      if (owner[i] == group.rank()) have.push_back(which_have_gradients(branches[i]));
    }
    return have;
  });
  const at::NoGradGuard no_gradients;
  ByOwner lists;
  std::vector<std::size_t> next(all.size());
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const auto rank = static_cast<std::size_t>(owner[i]);
    const at::Tensor have = all[rank][next[rank]++];
    const std::uint8_t* has = have.data_ptr<std::uint8_t>();
    for (const at::Tensor& parameter : branches[i].parameters) {
      if (*has++ == 0) {
        parameter.mutable_grad().reset();
        continue;
      }
      lists[{owner[i], parameter.scalar_type()}].push_back(
          gradient_to_share(parameter, owner[i] == group.rank()));
    }
  }
  broadcast_all(group, lists);
  for (const Branch& branch : branches) forget_model_share(branch.parameters);
}

void share_branch_parameters(ProcessGroup& group, const std::vector<Branch>& branches,
                             const std::vector<int>& owner) {
  agree(group, {"share_branch_parameters", branches, &owner}, [] { return Tensors(); });
  const at::NoGradGuard no_gradients;
  ByOwner lists;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    for (const Tensors* tensors : {&branches[i].parameters, &branches[i].buffers}) {
      for (const at::Tensor& tensor : *tensors)
        lists[{owner[i], tensor.scalar_type()}].push_back(tensor.detach());
    }
  }
  broadcast_all(group, lists);
}

}  // namespace paceline
