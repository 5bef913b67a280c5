#include "paceline/training/tensor/random.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/random_state.h"

namespace paceline {
namespace {

thread_local at::Generator own_generator;  // undefined before seed_rank()

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state_of(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void start_at(at::Generator generator, std::uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace

void seed_rank(std::uint64_t seed) {
  at::manual_seed(seed);
  if (own_generator.defined()) {
    own_generator.set_current_seed(seed);
  } else {
    own_generator = at::detail::createCPUGenerator(seed);
  }
}

at::Generator rank_generator() {
  return own_generator.defined() ? own_generator : at::detail::getDefaultCPUGenerator();
}

RandomState random_state() {
  return {state_of(at::detail::getDefaultCPUGenerator()),
          own_generator.defined() ? state_of(own_generator) : at::Tensor()};
}

void set_random_state(const RandomState& state) {
  set_state_of(at::detail::getDefaultCPUGenerator(), state.of_process);
  if (!state.of_rank.defined()) return;
  if (!own_generator.defined()) own_generator = at::detail::createCPUGenerator();
  set_state_of(own_generator, state.of_rank);
}

RandomStateGuard::RandomStateGuard(std::uint64_t seed) : before_(random_state()) {
  start_at(at::detail::getDefaultCPUGenerator(), seed);
  if (own_generator.defined()) start_at(own_generator, seed);
}

at::Tensor dropout(const at::Tensor& input, double p, bool is_training) {
  check(p >= 0 && p < 1, "dropout: the probability {} is not in [0, 1)", p);
  if (!is_training || p == 0) return input;
  return input * dropout_mask(input, 1 - p, rank_generator());
}

at::Tensor dropout_mask(const at::Tensor& input, double share, at::Generator generator) {
  const at::Tensor like = input.detach();
  const at::Tensor kept =
      at::empty_like(like, like.options().device(at::kCPU).pinned_memory(!like.is_cpu()));
  kept.bernoulli_(share, std::move(generator)).div_(share);
  return kept.to(like.device(), /*non_blocking=*/true);
}

}  // namespace paceline
