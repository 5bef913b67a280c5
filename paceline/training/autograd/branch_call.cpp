#include <algorithm>
#include <exception>
#include <optional>
#include <unordered_map>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/autograd/branch_functions.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/current_error.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kNoError = -1;

at::Tensor from_text(const std::string& text) {
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  return bytes;
}

std::string to_text(const at::Tensor& bytes) {
  const std::uint8_t* const begin = bytes.data_ptr<std::uint8_t>();
  return {begin, begin + bytes.numel()};
}

std::string describe(const BranchCall& call) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < call.branches.size(); ++i) {
    const Branch& branch = call.branches[i];
    std::string name = fmt::format("'{}' with {} parameters and buffers", branch.name,
                                   branch.parameters.size() + branch.buffers.size());
    if (call.owner != nullptr && i < call.owner->size())
      name += fmt::format(" on rank {}", (*call.owner)[i]);
    names.push_back(name);
  }
  std::string needs;
  for (const at::Tensor& input : call.inputs)
    needs += input.defined() && input.requires_grad() ? 'y' : 'n';
  return fmt::format("{} of {} branches ({}), inputs ({}), gradients of inputs '{}'{}", call.name,
                     names.size(), fmt::join(names, ", "), shapes_of(call.inputs), needs,
                     at::GradMode::is_enabled() ? "" : ", gradients disabled");
}

void require_owners(const ProcessGroup& group, const BranchCall& call) {
  check(call.owner->size() == call.branches.size(), "{} owners for {} branches", call.owner->size(),
        call.branches.size());
  std::unordered_map<const c10::TensorImpl*, std::size_t> user;
  for (std::size_t i = 0; i < call.branches.size(); ++i) {
    const int rank = (*call.owner)[i];
    check(rank >= 0 && rank < group.world_size(),
          "branch '{}' is assigned to rank {}, but the group has {} ranks, numbered from 0",
          call.branches[i].name, rank, group.world_size());
    for (const at::Tensor& parameter : call.branches[i].parameters) {
      const auto [other, is_new] = user.emplace(parameter.unsafeGetTensorImpl(), i);
      check((*call.owner)[other->second] == rank,
            "branches '{}' and '{}' share a parameter: one rank must own both",
            call.branches[other->second].name, call.branches[i].name);
    }
  }
}

}  // namespace

at::Tensor run_branch(const ProcessGroup& group, const Branch& branch, const Tensors& inputs) {
  try {
    check(branch.forward != nullptr, "it has no function");
    const at::Tensor result = branch.forward(inputs);
    check(result.defined() && result.layout() == at::kStrided && result.device().is_cpu(),
          "its result must be a dense tensor on the CPU");
    to_dtype(result.scalar_type());
    return result;
  } catch (...) {
    const Error error = current_error();
    throw error.reworded(fmt::format("{}: branch '{}' failed on inputs ({}): {}", group.self(),
                                     branch.name, shapes_of(inputs), error.what()));
  }
}

std::vector<Tensors> agree(ProcessGroup& group, const BranchCall& call,
                           const std::function<Tensors()>& work) {
  Tensors own;
  std::optional<Error> error;
  try {
    for (const at::Tensor& input : call.inputs) check(input.defined(), "an input is undefined");
    if (call.owner != nullptr) require_owners(group, call);
    own = work();
  } catch (const Error& wrong) {
    error = reported_by(group.self(), call.name, wrong);
  } catch (...) {
    error.emplace(ErrorCode::kInvalid,
                  fmt::format("{}: {}: {}", group.self(), call.name, describe_current_exception()));
  }
  const std::string description = describe(call);
  const auto code = error ? static_cast<std::int64_t>(error->code()) : kNoError;
  const Tensors head = {from_text(description), from_text(error ? error->what() : ""),
                        at::full({}, code, at::kLong)};
  own.insert(own.begin(), head.begin(), head.end());

  auto all = all_gather_object(group, own);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string first = to_text(all[0][0]), other = to_text(all[rank][0]);
    check(first == other, "rank {} made another call than rank 0. Rank 0: {}. Rank {}: {}", rank,
          first, rank, other);
  }
  for (const Tensors& told : all) {
    const auto its_code = told[2].item<std::int64_t>();
    if (its_code != kNoError) throw Error(static_cast<ErrorCode>(its_code), to_text(told[1]));
  }
  for (Tensors& told : all) told.erase(told.begin(), told.begin() + 3);
  return all;
}

}  // namespace paceline
