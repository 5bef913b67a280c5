#pragma once

// Random numbers that belong to a rank. LibTorch's generator belongs to the process, so ranks that
// are threads of one take numbers from each other, in an order that no two runs share. Once a
// thread has called seed_rank(), it has a generator of its own, which what is here uses: call it
// first in every rank that is a thread and whose numbers are to repeat themselves. A DataLoader
// with logical shards calls it for each shard.

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace paceline {

// Seeds this thread's generator, and LibTorch's: torch::nn::Dropout repeats itself where a process
// is one rank.
void seed_rank(std::uint64_t seed);

// This thread's generator; LibTorch's, before seed_rank().
at::Generator rank_generator();

// Where both generators stand.
struct RandomState {
  at::Tensor of_process;
  at::Tensor of_rank;  // undefined before seed_rank()
};
RandomState random_state();
void set_random_state(const RandomState& state);

// While it lives, both generators go on from a given state, or from a seed; then each is back where
// it was. Belongs to the thread that made it.
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

// As torch::dropout, by rank_generator(), on the CPU. Where ranks are threads, two runs drop the
// same elements only after seed_rank(). Elements of `input` become 0 with probability `p`, the
// others are divided by 1 - p; outside of training it returns its input. Error(kInvalid) unless
// 0 <= p < 1.
at::Tensor dropout(const at::Tensor& input, double p, bool is_training);

}  // namespace paceline
