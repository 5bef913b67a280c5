#include "paceline/optim/optimizer.h"

#include <array>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/core/check.h"

namespace paceline::optim {
namespace {

// Elements that one thread updates at a time.
constexpr std::int64_t kGrain = 32768;
constexpr std::size_t kMaxStates = 2;

}  // namespace

Optimizer::Optimizer(std::vector<at::Tensor> parameters, double learning_rate,
                     std::vector<std::string> state_names)
    : parameters_(std::move(parameters)),
      learning_rate_(learning_rate),
      state_names_(std::move(state_names)) {
  check(learning_rate_ >= 0, "the learning rate {} is negative", learning_rate_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i];
    check(parameter.scalar_type() == at::kFloat && parameter.device().is_cpu() &&
              parameter.is_non_overlapping_and_dense(),
          "parameter {} is not a dense float32 tensor on the CPU, which the fused optimizers need",
          i);
  }
  for (std::size_t name = 0; name < state_names_.size(); ++name) {
    state_.emplace_back();
    for (const auto& parameter : parameters_)
      state_.back().push_back(at::zeros_like(parameter.detach()));
  }
}

void Optimizer::step() {
  ++num_steps_;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i];
    at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.strides() != parameter.strides()) {
      gradient = at::empty_like(parameter).copy_(gradient);
    }
    std::array<float*, kMaxStates> state{};
    for (std::size_t name = 0; name < state_.size(); ++name)
      state[name] = state_[name][i].data_ptr<float>();
    float* values = parameter.data_ptr<float>();
    const float* gradients = gradient.data_ptr<float>();
    at::parallel_for(0, parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::array<float*, kMaxStates> from{};
      for (std::size_t name = 0; name < state_.size(); ++name) from[name] = state[name] + begin;
      update({values + begin, gradients + begin, from.data(), end - begin});
    });
  }
}

void Optimizer::zero_grad() {
  for (auto& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (std::size_t name = 0; name < state_.size(); ++name) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      all.emplace_back(state_names_[name] + "." + std::to_string(i), state_[name][i]);
    }
  }
  return all;
}

}  // namespace paceline::optim
