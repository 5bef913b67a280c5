#include "paceline/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <unordered_set>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/core/check.h"
#include "paceline/tensor/collectives.h"
#include "paceline/tensor/tensor_view.h"

namespace paceline::optim {
namespace {

// Elements that one thread updates at a time.
constexpr std::int64_t kGrain = 32768;
constexpr std::size_t kMaxStates = 2;
constexpr const char* kNumSteps = "num_steps";

void require_fusable(const std::vector<at::Tensor>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    check(parameter.scalar_type() == at::kFloat && parameter.device().is_cpu() &&
              parameter.is_non_overlapping_and_dense(),
          "parameter {} is not a dense float32 tensor on the CPU, which the fused optimizers need",
          i);
  }
}

// Each tensor once, where it came first. LibTorch's parameters() has a shared one once a name.
std::vector<at::Tensor> without_repetitions(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> unique;
  std::unordered_set<const void*> known;
  for (const auto& tensor : tensors) {
    if (known.insert(tensor.unsafeGetTensorImpl()).second) unique.push_back(tensor);
  }
  return unique;
}

}  // namespace

Optimizer::Optimizer(const std::vector<at::Tensor>& parameters, double learning_rate,
                     std::vector<std::string> state_names)
    : parameters_(without_repetitions(parameters)),
      state_names_(std::move(state_names)),
      layout_((require_fusable(parameters_), parameters_), 1),
      num_steps_(parameters_.size()) {
  set_learning_rate(learning_rate);
  allocate_state();
}

void Optimizer::set_learning_rate(double learning_rate) {
  check(std::isfinite(learning_rate) && learning_rate >= 0,
        "the learning rate {} is not a number of at least 0", learning_rate);
  learning_rate_ = learning_rate;
}

void Optimizer::allocate_state() {
  state_.clear();
  for (std::size_t name = 0; name < state_names_.size(); ++name)
    state_.push_back(at::zeros({layout_.part_count()}, at::kFloat));
}

void Optimizer::shard(std::shared_ptr<ProcessGroup> group) {
  check(!group_ && !has_stepped(), "rank {}: an optimizer is sharded once, before its first step",
        group->rank());
  if (group->world_size() == 1) return;
  group_ = std::move(group);
  layout_ = FlatLayout(parameters_, group_->world_size());
  flat_parameters_ = empty_symmetric(*group_, {layout_.count()});
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor place = layout_.place(flat_parameters_, i, parameters_[i]);
    place.copy_(parameters_[i]);
    parameters_[i].set_data(place);
  }
  allocate_state();
}

bool Optimizer::has_stepped() const {
  return std::any_of(num_steps_.begin(), num_steps_.end(), [](auto steps) { return steps > 0; });
}

void Optimizer::step() {
  if (before_step_) before_step_();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().defined()) continue;
    ++num_steps_[i];
    update_own_elements(i);
  }
  if (group_) exchange_parts();
}

void Optimizer::exchange_parts() {
  const auto begin = std::chrono::steady_clock::now();
  const at::Tensor own = flat_parameters_.narrow(0, own_begin(), layout_.part_count());
  group_->all_gather(dense_cpu_view(own), dense_cpu_view(flat_parameters_));
  exposed_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of a parameter, [first, last) in the order of its memory; none when last <= first.
std::pair<std::int64_t, std::int64_t> Optimizer::own_elements(std::size_t parameter) const {
  const std::int64_t offset = layout_.offset(parameter) - own_begin();
  return {std::max<std::int64_t>(0, -offset),
          std::min(parameters_[parameter].numel(), layout_.part_count() - offset)};
}

void Optimizer::update_own_elements(std::size_t parameter) {
  const auto& tensor = parameters_[parameter];
  at::Tensor gradient = tensor.grad();
  if (gradient.strides() != tensor.strides()) gradient = at::empty_like(tensor).copy_(gradient);
  const std::int64_t offset = layout_.offset(parameter) - own_begin();  // of element 0, in state_
  const auto [first, last] = own_elements(parameter);
  if (first >= last) return;
  float* const values = tensor.data_ptr<float>();
  const float* const gradients = gradient.data_ptr<float>();
  at::parallel_for(first, last, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::array<float*, kMaxStates> state{};
    for (std::size_t name = 0; name < state_.size(); ++name)
      state[name] = state_[name].data_ptr<float>() + offset + begin;
    update({values + begin, gradients + begin, state.data(), end - begin, num_steps_[parameter]});
  });
}

void Optimizer::zero_grad() {
  for (auto& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
}

at::Tensor Optimizer::whole(const at::Tensor& own) const {
  return group_ ? all_gather_into_tensor(*group_, own) : own;
}

NamedTensors Optimizer::state() const {
  NamedTensors all;
  for (std::size_t name = 0; name < state_.size(); ++name) {
    const at::Tensor flat = whole(state_[name]);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      all.emplace_back(state_name(name, i), layout_.place(flat, i, parameters_[i]));
    }
  }
  all.push_back(num_steps());
  return all;
}

std::pair<std::string, at::Tensor> Optimizer::num_steps() const {
  return {kNumSteps, at::tensor(num_steps_, at::kLong)};
}

std::vector<StatePart> Optimizer::state_parts() const {
  std::vector<StatePart> parts;
  for (std::size_t name = 0; name < state_.size(); ++name) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      StatePart part{state_name(name, i), parameters_[i], at::empty({0}, at::kFloat)};
      const auto [first, last] = own_elements(i);
      if (first < last) {
        part.first = first;
        part.elements =
            state_[name].narrow(0, layout_.offset(i) - own_begin() + first, last - first);
      }
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

void Optimizer::set_state(const NamedTensors& state) {
  check(state.size() == state_.size() * parameters_.size() + 1 && state.back().first == kNumSteps,
        "{}: {} tensors were given as the state of {} parameters, which has {}", name(),
        state.size(), parameters_.size(), state_.size() * parameters_.size() + 1);
  const at::Tensor steps = state.back().second.to(at::kLong).contiguous();
  check(steps.numel() == static_cast<std::int64_t>(num_steps_.size()),
        "{}: {} step counts were given for {} parameters", name(), steps.numel(),
        num_steps_.size());
  const at::NoGradGuard no_grad;
  auto given = state.begin();
  for (auto& own : state_) {
    const at::Tensor flat = at::zeros({layout_.count()}, at::kFloat);
    for (std::size_t i = 0; i < parameters_.size(); ++i, ++given)
      layout_.place(flat, i, parameters_[i]).copy_(given->second);
    own.copy_(flat.narrow(0, own_begin(), layout_.part_count()));
  }
  std::copy_n(steps.data_ptr<std::int64_t>(), num_steps_.size(), num_steps_.begin());
}

std::size_t Optimizer::num_state_bytes() const {
  std::size_t bytes = 0;
  for (const auto& own : state_) bytes += own.nbytes();
  return bytes;
}

}  // namespace paceline::optim
