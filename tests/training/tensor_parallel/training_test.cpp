// Training GPT with tensor parallelism, alone and together with data parallelism, matches one
// process.

#include <functional>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/training/models/gpt.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor_parallel/tensor_parallel_layers.h"
#include "paceline/training/tensor_parallel/vocab_parallel.h"

#include "tests/harness/thread_ranks.h"
#include "tests/training/tensor_parallel/dense_and_parallel.h"

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

using LossOf = std::function<at::Tensor(const at::Tensor& inputs, const at::Tensor& targets)>;

// The sequences of a step that a rank takes.
struct Share {
  std::int64_t first = 0;
  std::int64_t count = kSequences;
};

// The losses of the steps with AdamW.
std::vector<double> train(const Gpt& model, const LossOf& loss_of, const Share& share = {}) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  std::vector<double> losses;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor text =
        pattern_of(step, kSequences, kLength, kTokens).narrow(0, share.first, share.count);
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(text.narrow(1, 0, kLength), text.narrow(1, 1, kLength));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

struct Trained {
  std::vector<double> losses;
  StateDict weights;
};

Trained train_dense() {
  Gpt model = seeded(8, [] { return Gpt(learning_gpt()); });
  model->to(torch::kDouble);
  const auto losses = train(model, [&](const at::Tensor& inputs, const at::Tensor& targets) {
    return models::next_token_loss(model->forward(inputs), targets);
  });
  return {losses, copies_of(*model)};
}

void expect_same_training(const Trained& found, const Trained& wanted) {
  ASSERT_EQ(found.losses.size(), wanted.losses.size());
  for (std::size_t i = 0; i < wanted.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], wanted.losses[i], 1e-9) << "step " << i;
  // Adam divides by the size of gradients, which amplifies the rounding of small ones.
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
    const auto losses = train(model, [&](const at::Tensor& inputs, const at::Tensor& targets) {
      return vocab_parallel_cross_entropy(group, model->forward(inputs), targets);
    });
    expect_same_training({losses, full_state_dict(*model, own)}, wanted);
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
    const std::int64_t count = kSequences / mesh.size("dp");
    auto losses = train(model,
                        [&](const at::Tensor& inputs, const at::Tensor& targets) {
                          return models::next_token_loss(replicas->forward(inputs), targets);
                        },
                        {count * mesh.rank("dp"), count});
    for (double& loss : losses) loss = all_reduce_value(*mesh.group("dp"), loss) / mesh.size("dp");
    expect_same_training({losses, full_state_dict(*model, *mesh.group("tp"))}, wanted);
  });
}

INSTANTIATE_TEST_SUITE_P(SequenceParallel, ParallelTrainingTest, testing::Bool());

}  // namespace
}  // namespace paceline
