// Gradients that are reduced in the memory in which autograd made them: over sockets always, and on
// one host if tensors are symmetric.

#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/tensor_memory.h"

#include "tests/harness/process_ranks.h"

namespace paceline {
namespace {

using harness::run_process_ranks;

// One gradient of 640 KB and three small ones.
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
  // Round 0 averages; round 1 accumulates without communication and averages the sum; round 2 adds
  // to existing gradients.
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
  for (const auto& result : run_process_ranks(2, [](ProcessGroup& group) {
         const SymmetricTensors symmetric(group);
         return train(group);
       })) {
    EXPECT_EQ(result.report, "right, 2 buckets");
  }
}

TEST(LargeGradient, is_averaged_where_it_lies_over_sockets) {
  for (const auto& result : run_process_ranks(2, train, {.transport = TransportKind::kTcp})) {
    EXPECT_EQ(result.report, "right, 2 buckets");
  }
}

TEST(LargeGradient, takes_a_bucket_where_its_memory_is_not_shared) {
  for (const auto& result : run_process_ranks(2, train))
    EXPECT_EQ(result.report, "right, 1 buckets");
}

// A function whose backward pass returns a copy of the gradient, after a pause in which the
// all-reduce of an earlier gradient can end.
struct Late : torch::autograd::Function<Late> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return {gradients[0].clone()};
  }
};

// A learned map is added to the body's output through a view, so that its gradient is a view of the
// gradient that the body still needs. The map's gradient is computed first.
struct AddedMap : torch::nn::Module {
  AddedMap() {
    body = register_parameter("body", at::full({400, 400}, 0.5));
    map = register_parameter("map", at::full({400, 400}, 0.25));
  }
  at::Tensor forward(const at::Tensor& input) {
    // Autograd begins with the last operation, the addition of the map.
    const at::Tensor output = Late::apply(body * input).unsqueeze(0);
    return output + map.unsqueeze(0);
  }
  at::Tensor body, map;
};

// Rank r's input is r + 1, its loss (body x input + map)^2 / 2.
std::string train_added_map(ProcessGroup& group) {
  const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
  DistributedDataParallel model(std::make_shared<AddedMap>(), shared);
  model.forward(at::ones({400, 400})).sum().backward();  // plans the buckets
  model->zero_grad();
  for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
  for (const bool accumulates : {false, true}) {
    const auto loss = model.forward(at::full({400, 400}, group.rank() + 1.0)).square().sum() / 2;
    loss.backward();
    // The outputs are 0.75 and 1.25; accumulated gradients have already been averaged.
    const double scale = accumulates ? 2 : 1;
    EXPECT_TRUE(at::allclose(model.module().map.grad(), at::full({400, 400}, scale * 1.0)));
    EXPECT_TRUE(at::allclose(model.module().body.grad(),
                             at::full({400, 400}, scale * (0.75 + 2 * 1.25) / 2)));
  }
  return "done";
}

TEST(LargeGradient, that_is_a_view_of_one_still_needed_is_copied_first) {
  for (const auto& result : run_process_ranks(2, [](ProcessGroup& group) {
         const SymmetricTensors symmetric(group);
         return train_added_map(group);
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.report;
  }
  for (const auto& result :
       run_process_ranks(2, train_added_map, {.transport = TransportKind::kTcp})) {
    EXPECT_EQ(result.exit_code, 0) << result.report;
  }
}

// The tensor given to backward() belongs to the user.
TEST(LargeGradient, of_what_the_user_gave_leaves_that_alone) {
  for (const auto& result : run_process_ranks(
           2,
           [](ProcessGroup& group) {
             const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
             DistributedDataParallel model(std::make_shared<AddedMap>(), shared);
             const auto given = at::full({1, 400, 400}, group.rank() + 1.0);
             model.forward(at::ones({400, 400})).backward(given);
             EXPECT_TRUE(at::equal(given, at::full({1, 400, 400}, group.rank() + 1.0)));
             EXPECT_TRUE(at::equal(model.module().map.grad(), at::full({400, 400}, 1.5)));
             return std::string("done");
           },
           {.transport = TransportKind::kTcp})) {
    EXPECT_EQ(result.exit_code, 0) << result.report;
  }
}

// The gradients of linear layers and convolutions are reduced where autograd made them.
struct Common : torch::nn::Module {
  Common() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(256, 64, 3)));
    flat = register_module("flat", torch::nn::Linear(64, 4096));
    rows = register_module("rows", torch::nn::Linear(512, 512));
  }
  at::Tensor forward(const at::Tensor& images) {
    return rows(torch::relu(flat(conv(images).flatten(1))).view({-1, 8, 512}));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear flat{nullptr}, rows{nullptr};
};

TEST(LargeGradient, that_nothing_else_refers_to_is_not_copied) {
  for (const auto& result :
       run_process_ranks(2,
                         [](ProcessGroup& group) {
                           const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
                           DistributedDataParallel model(std::make_shared<Common>(), shared);
                           std::vector<at::Tensor> large;
                           for (const auto& parameter : model->parameters()) {
                             if (parameter.dim() > 1) large.push_back(parameter);
                           }
                           std::vector<const void*> made(large.size());
                           for (std::size_t i = 0; i < large.size(); ++i) {
                             large[i].register_hook([&made, i](const at::Tensor& gradient) {
                               made[i] = gradient.data_ptr();
                             });
                           }
                           model.forward(at::ones({4, 256, 3, 3})).square().mean().backward();
                           for (std::size_t i = 0; i < large.size(); ++i)
                             EXPECT_EQ(large[i].grad().data_ptr(), made[i]) << "parameter " << i;
                           return std::string("done");
                         },
                         {.transport = TransportKind::kTcp})) {
    EXPECT_EQ(result.exit_code, 0) << result.report;
  }
}

}  // namespace
}  // namespace paceline
