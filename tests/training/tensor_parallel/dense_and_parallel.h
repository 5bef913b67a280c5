#pragma once

// Compares a dense model with ranks that have parts of the same model.

#include <cstdint>
#include <functional>
#include <string>

#include <torch/torch.h>

#include "paceline/training/autograd/differentiable_collectives.h"
#include "paceline/training/tensor_parallel/full_state_dict.h"

#include "tests/harness/borrowed_group.h"

namespace paceline {

using harness::borrowed;

// Lets one thread run at a time, with LibTorch's generator seeded.
class SeedTurn {
 public:
  explicit SeedTurn(std::uint64_t seed);
  ~SeedTurn();
  SeedTurn(const SeedTurn&) = delete;
  SeedTurn& operator=(const SeedTurn&) = delete;
};

// Calls `make` with LibTorch's generator seeded with `seed`; ranks that are threads take turns.
template <class Make>
auto seeded(std::uint64_t seed, const Make& make) {
  const SeedTurn turn(seed);
  return make();
}

// The tokens of a step, [sequences, length + 1]. They follow a pattern that can be learned.
at::Tensor pattern_of(std::int64_t step, std::int64_t sequences, std::int64_t length,
                      std::int64_t tokens);

// The tolerance for values of about 1: 1e-5 in float32, 1e-10 in float64.
double tolerance_of(torch::ScalarType type);
void expect_close(const at::Tensor& value, const at::Tensor& wanted, const std::string& what);

// Copies of a dense module's parameters.
StateDict copies_of(const torch::nn::Module& module);
// The gradients of a module's parameters; those without one are left out.
StateDict gradients_of(const torch::nn::Module& module);
// Collective: the whole gradients of a divided module.
StateDict gradients_of(torch::nn::Module& module, ProcessGroup& group);
void expect_same_tensors(
    const StateDict& found, const StateDict& wanted,
    const std::function<void(const at::Tensor&, const at::Tensor&, const std::string&)>& compare);

}  // namespace paceline
