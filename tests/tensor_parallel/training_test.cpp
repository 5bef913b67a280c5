// Training GPT with tensor parallelism, alone and beside data parallelism, follows one process.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/collectives/group/device_mesh.h"
#include "paceline/models/gpt.h"
#include "paceline/parallel/distributed_data_parallel.h"
#include "paceline/tensor_parallel/layers.h"
#include "paceline/tensor_parallel/vocab_parallel_loss.h"

#include "tests/harness/thread_ranks.h"
#include "tests/tensor_parallel/dense_and_parallel.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using models::Gpt;

constexpr std::int64_t kSteps = 6, kSequences = 4, kLength = 8, kTokens = 16;

models::GptOptions learning_gpt() {
  return {.vocabulary = kTokens,
          .context = kLength,
          .layers = 2,
          .width = 16,
          .heads = 4,
          .key_value_heads = 2,
          .dropout = 0};
}

// Of a step: [sequences, length + 1] of a pattern that can be learned.
at::Tensor text_of(std::int64_t step) {
  const at::Tensor starts = torch::arange(kSequences).mul(3).add(step).unsqueeze(1);
  return starts.add(torch::arange(kLength + 1).mul(5)).remainder(kTokens);
}

at::Tensor inputs_of(const at::Tensor& text) { return text.narrow(1, 0, kLength); }
at::Tensor targets_of(const at::Tensor& text) { return text.narrow(1, 1, kLength); }

torch::optim::AdamW optimizer_of(Gpt& model) {
  return torch::optim::AdamW(model->parameters(), torch::optim::AdamWOptions(0.01));
}

struct Trained {
  std::vector<double> losses;
  TensorsByName weights;
};

Trained train_dense() {
  Gpt model = seeded(8, [] { return Gpt(learning_gpt()); });
  model->to(torch::kDouble);
  auto optimizer = optimizer_of(model);
  Trained result;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor text = text_of(step);
    optimizer.zero_grad();
    const at::Tensor loss =
        models::next_token_loss(model->forward(inputs_of(text)), targets_of(text));
    loss.backward();
    optimizer.step();
    result.losses.push_back(loss.item<double>());
  }
  result.weights = copies_of(*model);
  return result;
}

void expect_same_training(const Trained& found, const Trained& wanted) {
  ASSERT_EQ(found.losses.size(), wanted.losses.size());
  for (std::size_t i = 0; i < wanted.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], wanted.losses[i], 1e-9) << "step " << i;
  // Adam divides by gradients' sizes, and makes rounding of small ones larger.
  expect_same_tensors(found.weights, wanted.weights,
                      [](const auto& value, const auto& expected, const auto& name) {
                        EXPECT_TRUE(torch::allclose(value, expected, 1e-6, 1e-7)) << name;
                      });
}

class ParallelTrainingTest : public testing::TestWithParam<bool> {};

TEST_P(ParallelTrainingTest, two_ranks_follow_one_process) {
  const Trained wanted = train_dense();
  EXPECT_LT(wanted.losses.back(), wanted.losses.front());
  run_ranks_ok(2, [&](ProcessGroup& own) {
    const auto group = borrowed(own);
    Gpt model = seeded(8, [&] {
      return Gpt(learning_gpt(), tensor_parallel_layers(group, {.sequence_parallel = GetParam(),
                                                                .gather_logits = false}));
    });
    model->to(torch::kDouble);
    auto optimizer = optimizer_of(model);
    Trained result;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor text = text_of(step);
      optimizer.zero_grad();
      const at::Tensor loss =
          vocab_parallel_cross_entropy(group, model->forward(inputs_of(text)), targets_of(text));
      loss.backward();
      optimizer.step();
      result.losses.push_back(loss.item<double>());
    }
    result.weights = gather_dense(*model, own);
    expect_same_training(result, wanted);
  });
}

TEST_P(ParallelTrainingTest, two_by_two_ranks_with_data_parallelism_follow_one_process) {
  const Trained wanted = train_dense();
  run_ranks_ok(4, [&](ProcessGroup& own) {
    const DeviceMesh mesh(borrowed(own), {{"dp", 2}, {"tp", 2}});
    Gpt model = seeded(8, [&] {
      return Gpt(learning_gpt(),
                 tensor_parallel_layers(mesh.group("tp"), {.sequence_parallel = GetParam()}));
    });
    model->to(torch::kDouble);
    DistributedDataParallel replicas(model.ptr(), mesh.group("dp"));
    auto optimizer = optimizer_of(model);
    Trained result;
    const std::int64_t share = kSequences / mesh.size("dp");
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor text = text_of(step).narrow(0, share * mesh.rank("dp"), share);
      optimizer.zero_grad();
      const at::Tensor loss =
          models::next_token_loss(replicas->forward(inputs_of(text)), targets_of(text));
      loss.backward();
      optimizer.step();
      const double sum = all_reduce_value(*mesh.group("dp"), loss.item<double>());
      result.losses.push_back(sum / mesh.size("dp"));
    }
    result.weights = gather_dense(*model, *mesh.group("tp"));
    expect_same_training(result, wanted);
  });
}

INSTANTIATE_TEST_SUITE_P(SequenceParallel, ParallelTrainingTest, testing::Bool());

}  // namespace
}  // namespace paceline
