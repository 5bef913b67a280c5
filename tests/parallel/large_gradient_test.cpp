// Gradients that are reduced where autograd left them: over sockets always, on one host when
// tensors are symmetric.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/parallel/distributed_data_parallel.h"
#include "paceline/tensor/symmetric_tensors.h"

#include "tests/harness/process_ranks.h"

namespace paceline {
namespace {

// One gradient of 640 KB, three small ones.
struct Wide : torch::nn::Module {
  Wide() {
    torch::manual_seed(0);
    first = register_module("first", torch::nn::Linear(8, 20'000));
    second = register_module("second", torch::nn::Linear(20'000, 2));
  }
  at::Tensor forward(const at::Tensor& input) { return second(torch::relu(first(input))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

at::Tensor batch(int seed) {
  return at::randn({16, 8}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed)));
}

template <class Module>
void run_step(Module& module, int seed) {
  module.forward(batch(seed)).square().mean().backward();
}

std::string compare(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted,
                    double scale) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!at::allclose(got[i].grad(), wanted[i].grad() * scale, 1e-4, 1e-6))
      return "wrong gradient " + std::to_string(i);
  }
  return "right";
}

std::string train(ProcessGroup& group) {
  const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
  DistributedDataParallel model(std::make_shared<Wide>(), shared);
  Wide reference;
  // Averages; then accumulates without communication and averages the sum; then adds to what is
  // there.
  for (int round = 0; round < 3; ++round) {
    const int base = 10 * round;
    if (round < 2) {
      for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    } else {
      for (auto& parameter : model->parameters()) parameter.mutable_grad().zero_();
    }
    reference.zero_grad();
    if (round == 1) {
      const auto paused = model.no_sync();
      run_step(model, base + group.rank());
    }
    run_step(model, base + 2 + group.rank());
    if (round == 1) {
      for (int rank = 0; rank < 2; ++rank) run_step(reference, base + rank);
    }
    for (int rank = 0; rank < 2; ++rank) run_step(reference, base + 2 + rank);
    const auto verdict = compare(model->parameters(), reference.parameters(), 0.5);
    if (verdict != "right") return fmt::format("round {}: {}", round, verdict);
  }
  return fmt::format("right, {} buckets", model.reducer().num_buckets());
}

TEST(LargeGradient, is_averaged_where_it_lies_in_symmetric_tensors) {
  for (const auto& result : harness::run_process_ranks(2, [](ProcessGroup& group) {
         const SymmetricTensors symmetric(group);
         return train(group);
       })) {
    EXPECT_EQ(result.report, "right, 2 buckets");
  }
}

TEST(LargeGradient, is_averaged_where_it_lies_over_sockets) {
  for (const auto& result :
       harness::run_process_ranks(2, train, {.transport = TransportKind::kTcp})) {
    EXPECT_EQ(result.report, "right, 2 buckets");
  }
}

TEST(LargeGradient, takes_a_bucket_where_its_memory_is_not_shared) {
  for (const auto& result : harness::run_process_ranks(2, train))
    EXPECT_EQ(result.report, "right, 1 buckets");
}

}  // namespace
}  // namespace paceline
