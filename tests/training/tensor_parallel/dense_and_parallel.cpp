#include "tests/training/tensor_parallel/dense_and_parallel.h"

#include <mutex>

#include <gtest/gtest.h>

namespace paceline {
namespace {

std::mutex turns;

}  // namespace

SeedTurn::SeedTurn(std::uint64_t seed) {
  turns.lock();
  torch::manual_seed(seed);
}

SeedTurn::~SeedTurn() { turns.unlock(); }

at::Tensor pattern_of(std::int64_t step, std::int64_t sequences, std::int64_t length,
                      std::int64_t tokens) {
  const at::Tensor starts = torch::arange(sequences).mul(3).add(step).unsqueeze(1);
  return starts.add(torch::arange(length + 1).mul(5)).remainder(tokens);
}

double tolerance_of(torch::ScalarType type) { return type == torch::kDouble ? 1e-10 : 1e-5; }

void expect_close(const at::Tensor& value, const at::Tensor& wanted, const std::string& what) {
  ASSERT_EQ(value.sizes(), wanted.sizes()) << what;
  const double tolerance = tolerance_of(wanted.scalar_type());
  const double most = (value - wanted).abs().max().item<double>();
  const double scale = std::max(1.0, wanted.abs().max().item<double>());
  EXPECT_LE(most, tolerance * scale) << what;
}

StateDict copies_of(const torch::nn::Module& module) {
  StateDict copies;
  for (const auto& parameter : module.named_parameters())
    copies.emplace(parameter.key(), parameter.value().detach().clone());
  return copies;
}

StateDict gradients_of(const torch::nn::Module& module) {
  StateDict gradients;
  for (const auto& parameter : module.named_parameters()) {
    if (parameter.value().grad().defined())
      gradients.emplace(parameter.key(), parameter.value().grad());
  }
  return gradients;
}

StateDict gradients_of(torch::nn::Module& module, ProcessGroup& group) {
  return full_state_dict(module, group,
                         [](const at::Tensor& parameter) { return parameter.grad(); });
}

void expect_same_tensors(
    const StateDict& found, const StateDict& wanted,
    const std::function<void(const at::Tensor&, const at::Tensor&, const std::string&)>& compare) {
  EXPECT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    compare(found.at(name), tensor, name);
  }
}

}  // namespace paceline
