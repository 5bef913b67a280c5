#include "paceline/training/autograd/parallel_branches.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <initializer_list>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/timing.h"
#include "paceline/training/autograd/branch_functions.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor/random_state.h"
#include "paceline/training/tensor/tensor_call.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<at::Tensor>;

// A branch in the graph of every rank: inputs, Entered, the branch itself on its owner, Left,
// result. All Entered nodes are created before the branches and all Left nodes after them, so every
// rank's backward pass computes its own branches first and then reaches the Entered nodes in the
// same order.
struct Passage : torch::CustomClassHolder {
  Passage(GroupPtr of, int owned_by, std::string names)
      : group(std::move(of)), owner(owned_by), own_branches(std::move(names)) {}
  // If an exception has ended the backward pass, aborts the group, because the other ranks would
  // wait for this one.
  ~Passage() override {
    if (!is_under_way || std::uncaught_exceptions() == 0) return;
    try {
      group->abort(
          fmt::format("{}: the backward pass failed in branches {}", group->self(), own_branches));
    } catch (...) {
    }
  }
  bool is_own() const { return group->rank() == owner; }

  const GroupPtr group;
  const int owner;
  const std::string own_branches;
  // Sizes and options of the inputs that require a gradient.
  std::vector<std::pair<std::vector<std::int64_t>, at::TensorOptions>> inputs;
  at::Tensor value;           // the result, until it is part of the graph
  bool is_under_way = false;  // the owner's backward pass is between Left and Entered
};
using PassagePtr = c10::intrusive_ptr<Passage>;

PassagePtr passage_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Passage>(context->saved_data["passage"].toCapsule());
}

struct Entered : torch::autograd::Function<Entered> {
  // Returns the inputs on the owner and no inputs on other ranks, followed by an empty tensor that
  // links Entered to Left, so that every rank's backward pass runs both nodes, whether the rank
  // owns the branch or not.
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const PassagePtr& passage) {
    context->saved_data["passage"] = c10::IValue::make_capsule(passage);
    context->set_materialize_grads(false);
    variable_list outputs;
    for (const at::Tensor& input : inputs) {
      passage->inputs.emplace_back(input.sizes().vec(), input.options());
      if (passage->is_own()) outputs.push_back(input.view_as(input));
    }
    outputs.push_back(at::zeros({}));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto passage = passage_of(context);
    ProcessGroup& group = *passage->group;
    if (at::GradMode::is_enabled()) {
      fail(ErrorCode::kUnsupported, "{}: parallel_branches has no gradients of gradients",
           group.self());
    }
    const auto count = passage->inputs.size();
    const at::Tensor present = at::zeros({static_cast<std::int64_t>(count)}, at::kByte);
    std::uint8_t* const is_present = present.data_ptr<std::uint8_t>();
    for (std::size_t i = 0; passage->is_own() && i < count; ++i)
      is_present[i] = gradients[i].defined() ? 1 : 0;
    passage->is_under_way = false;
    broadcast(group, present, passage->owner);
    variable_list result(count + 1);  // the last one, for `passage`, stays undefined
    for (std::size_t i = 0; i < count; ++i) {
      if (is_present[i] == 0) continue;
      const auto& [sizes, options] = passage->inputs[i];
      result[i] = passage->is_own() ? gradients[i].contiguous() : at::empty(sizes, options);
      broadcast(group, result[i], passage->owner);
    }
    return result;
  }
};

struct Left : torch::autograd::Function<Left> {
  // `result`: the branch's result on the owner; empty on other ranks.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& link, at::TensorList result,
                            const PassagePtr& passage) {
    (void)link, (void)result;
    context->saved_data["passage"] = c10::IValue::make_capsule(passage);
    context->set_materialize_grads(false);
    return std::exchange(passage->value, {});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto passage = passage_of(context);
    if (!passage->is_own()) return {at::Tensor(), at::Tensor()};
    passage->is_under_way = !passage->inputs.empty();
    return {at::Tensor(), gradients[0], at::Tensor()};
  }
};

struct Entry {
  Tensors inputs;
  at::Tensor link;
};

Entry enter(const Tensors& inputs, const PassagePtr& passage) {
  Tensors with_gradient;
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) with_gradient.push_back(input);
  }
  if (with_gradient.empty() || !at::GradMode::is_enabled())
    return {inputs, at::empty({0}).requires_grad_()};
  const variable_list outputs = Entered::apply(at::TensorList(with_gradient), passage);
  Entry entry{inputs, outputs.back()};
  auto next = outputs.begin();
  for (at::Tensor& input : entry.inputs) {
    if (input.requires_grad() && passage->is_own()) input = *next++;
  }
  return entry;
}

// Describes a result: its type, whether it requires a gradient, and its sizes.
at::Tensor facts_of(const at::Tensor& result) {
  std::vector<std::int64_t> numbers = {static_cast<std::int64_t>(result.scalar_type()),
                                       result.requires_grad() ? 1 : 0};
  numbers.insert(numbers.end(), result.sizes().begin(), result.sizes().end());
  return at::tensor(numbers, at::kLong);
}

at::Tensor leave(const at::Tensor& facts, const Tensors& inputs, const Tensors& own,
                 const at::Tensor& link, const PassagePtr& passage) {
  const std::int64_t* const numbers = facts.data_ptr<std::int64_t>();
  const at::IntArrayRef sizes(numbers + 2, static_cast<std::size_t>(facts.numel()) - 2);
  at::Tensor value =
      passage->is_own()
          ? own[0].detach().contiguous()
          : at::empty(sizes, at::TensorOptions(static_cast<at::ScalarType>(numbers[0])));
  for (const at::Tensor& input : inputs) {
    if (value.is_alias_of(input)) value = value.clone();
  }
  broadcast(*passage->group, value, passage->owner);
  if (numbers[1] == 0) return value;
  passage->value = value;
  return Left::apply(link, at::TensorList(own), passage);
}

std::string names_of(const std::vector<Branch>& branches, const std::vector<int>& owner, int rank) {
  std::string names;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    if (owner[i] == rank)
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", branches[i].name);
  }
  return names;
}

}  // namespace

Tensors parallel_branches(const GroupPtr& group, const Tensors& inputs,
                          const std::vector<Branch>& branches, const std::vector<int>& owner) {
  check(group != nullptr && group->is_member(),
        "parallel_branches: this rank is not a member of the group");
  const auto seed = static_cast<std::uint64_t>(
      at::empty({}, at::kLong).random_(rank_generator()).item<std::int64_t>());
  std::vector<PassagePtr> passages;
  std::vector<Entry> entries;
  std::vector<Tensors> own(branches.size());
  const auto run_own = [&] {
    const std::string names = names_of(branches, owner, group->rank());
    Tensors facts;
    for (const int rank : owner) {
      passages.push_back(c10::make_intrusive<Passage>(group, rank, names));
      entries.push_back(enter(inputs, passages.back()));
    }
    for (std::size_t i = 0; i < branches.size(); ++i) {
      if (!passages[i]->is_own()) continue;
      const RandomStateGuard random(seed + i * 0x9e3779b9u);
      own[i] = {run_branch(*group, branches[i], entries[i].inputs)};
      facts.push_back(facts_of(own[i][0]));
    }
    return facts;
  };
  const auto all = agree(*group, {"parallel_branches", branches, &owner, inputs}, run_own);
  if (group->world_size() > 1 && at::GradMode::is_enabled()) {
    for (const Branch& branch : branches)
      note_model_share(branch.parameters, {"a branch whose gradients only its owner has"});
  }
  Tensors results;
  std::vector<std::size_t> next(all.size());
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const auto rank = static_cast<std::size_t>(owner[i]);
    results.push_back(leave(all[rank][next[rank]++], inputs, own[i], entries[i].link, passages[i]));
  }
  return results;
}

namespace {

using ByOwner = std::map<std::pair<int, at::ScalarType>, Tensors>;

void broadcast_all(ProcessGroup& group, const ByOwner& lists) {
  for (const auto& [key, tensors] : lists) broadcast_coalesced(group, tensors, key.first);
}

// Returns one byte for each parameter: whether the parameter has a gradient.
at::Tensor which_have_gradients(const Branch& branch) {
  const at::Tensor have =
      at::zeros({static_cast<std::int64_t>(branch.parameters.size())}, at::kByte);
  std::uint8_t* next = have.data_ptr<std::uint8_t>();
  for (const at::Tensor& parameter : branch.parameters)
    *next++ = parameter.grad().defined() ? 1 : 0;
  return have;
}

// Returns the gradient in the layout of the parameter, which is the same on every rank.
at::Tensor gradient_to_share(const at::Tensor& parameter, bool is_own) {
  at::Tensor& gradient = own_gradient(parameter);
  const at::Tensor known = gradient;
  if (!known.defined() || known.strides() != parameter.strides()) {
    gradient = at::empty_like(parameter.detach());
    if (is_own) gradient.copy_(known);
  }
  return gradient;
}

}  // namespace

void share_branch_gradients(GroupRef group, const std::vector<Branch>& branches,
                            const std::vector<int>& owner) {
  const auto all = agree(group, {"share_branch_gradients", branches, &owner}, [&] {
    Tensors have;
    for (std::size_t i = 0; i < branches.size(); ++i) {
      if (owner[i] == group->rank()) have.push_back(which_have_gradients(branches[i]));
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
        own_gradient(parameter).reset();
        continue;
      }
      lists[{owner[i], parameter.scalar_type()}].push_back(
          gradient_to_share(parameter, owner[i] == group->rank()));
    }
  }
  broadcast_all(group, lists);
  for (const Branch& branch : branches) forget_model_share(branch.parameters);
}

void share_branch_parameters(GroupRef group, const std::vector<Branch>& branches,
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

namespace {

// Restores the branch's buffers at the end, because a forward pass may change them.
class KeptBuffers {
 public:
  explicit KeptBuffers(const Branch& branch) : buffers_(branch.buffers) {
    for (const at::Tensor& buffer : buffers_) copies_.push_back(buffer.detach().clone());
  }
  ~KeptBuffers() {
    const at::NoGradGuard no_gradients;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(copies_[i]);
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  const Tensors buffers_;
  Tensors copies_;
};

// Returns the seconds of a forward and a backward pass; does not change .grad.
double time_branch(const ProcessGroup& group, const Branch& branch, const Tensors& inputs) {
  const at::AutoGradMode with_gradients(true);
  Tensors leaves, targets;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().requires_grad_(input.requires_grad()));
  for (const Tensors* tensors :
       std::initializer_list<const Tensors*>{&leaves, &branch.parameters}) {
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.requires_grad()) targets.push_back(tensor);
    }
  }
  const auto backward = [&](const Tensors& given) {
    const at::Tensor result = branch.forward(given);
    if (result.defined() && result.requires_grad() && !targets.empty())
      torch::autograd::grad({result}, targets, {at::ones_like(result)}, {}, false, true);
    return result.detach();
  };
  const auto start = std::chrono::steady_clock::now();
  run_branch(group, {branch.name, backward}, leaves);
  return seconds_since(start);
}

}  // namespace

std::vector<int> assign_branches(const std::vector<double>& costs, int num_ranks) {
  check(num_ranks >= 1, "assign_branches: {} ranks", num_ranks);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    check(std::isfinite(costs[i]) && costs[i] >= 0, "assign_branches: the cost of branch {} is {}",
          i, costs[i]);
  }
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<double> work(static_cast<std::size_t>(num_ranks));
  std::vector<int> owner(costs.size());
  for (const std::size_t branch : order) {
    const auto least = std::min_element(work.begin(), work.end());
    *least += costs[branch];
    owner[branch] = static_cast<int>(least - work.begin());
  }
  return owner;
}

std::vector<double> measure_branches(GroupRef group, const Tensors& inputs,
                                     const std::vector<Branch>& branches, int repeats) {
  std::vector<double> costs;
  agree(group, {"measure_branches", branches, nullptr, inputs}, [&] {
    check(repeats >= 1, "{} repeats", repeats);
    for (const Branch& branch : branches) {
      const KeptBuffers buffers(branch);
      const RandomStateGuard random(std::uint64_t{0});
      time_branch(group, branch, inputs);  // to warm up: allocates memory and loads code
      double fastest = std::numeric_limits<double>::infinity();
      for (int i = 0; i < repeats; ++i)
        fastest = std::min(fastest, time_branch(group, branch, inputs));
      costs.push_back(fastest);
    }
    return Tensors();
  });
  group->all_reduce(std::span(costs), ReduceOp::kMean);
  return costs;
}

ParallelBranches::ParallelBranches(GroupPtr group, std::vector<Branch> branches,
                                   std::vector<int> owner)
    : group_(std::move(group)), branches_(std::move(branches)), owner_(std::move(owner)) {}

ParallelBranches::ParallelBranches(GroupPtr group, std::vector<Branch> branches,
                                   const Tensors& inputs, int repeats)
    : group_(std::move(group)),
      branches_(std::move(branches)),
      owner_(assign_branches(measure_branches(group_, inputs, branches_, repeats),
                             group_->world_size())) {}

Tensors ParallelBranches::forward(const Tensors& inputs) const {
  return parallel_branches(group_, inputs, branches_, owner_);
}

void ParallelBranches::share_gradients() const {
  share_branch_gradients(group_, branches_, owner_);
}

void ParallelBranches::share_parameters() const {
  share_branch_parameters(group_, branches_, owner_);
}

}  // namespace paceline
