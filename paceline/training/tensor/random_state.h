#pragma once

// This rank's random numbers: the generator, dropout masks that are drawn from a generator, and the
// generators' states, for checkpoints and for passes that are computed again.
//
// Thread safety: none.

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace paceline {

// Returns this thread's generator; before seed_rank(), LibTorch's.
at::Generator rank_generator();

// Returns a tensor like `input` whose elements are 1 / `share` with the probability `share`,
// otherwise 0. The numbers are drawn on the CPU, so they are the same on a CUDA device, to which
// they are copied.
at::Tensor dropout_mask(const at::Tensor& input, double share, at::Generator generator);

// The states of LibTorch's generator, which belongs to the process, and of this thread's generator.
struct RandomState {
  at::Tensor of_process;
  at::Tensor of_rank;  // undefined before seed_rank()
};
RandomState random_state();
void set_random_state(const RandomState& state);

// Sets both generators to a given state, or to a seed, and restores their previous state when it is
// destroyed. Belongs to the thread that made it.
class RandomStateGuard {
 public:
  explicit RandomStateGuard(const RandomState& state) : before_(random_state()) {
    set_random_state(state);
  }
  explicit RandomStateGuard(std::uint64_t seed);
  ~RandomStateGuard() { set_random_state(before_); }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  const RandomState before_;
};

}  // namespace paceline
