#include "paceline/training/parallel/activation_checkpoint.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/parallel/distributed_data_parallel.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::Says;

// Two blocks and a linear layer that both blocks use; dropout only if requested.
struct Blocks : torch::nn::Module {
  explicit Blocks(bool keeps_all, double dropout = 0) : keeps_all(keeps_all), dropout(dropout) {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(6, 6));
    second = register_module("second", torch::nn::Linear(6, 6));
    both = register_module("both", torch::nn::Linear(6, 6));
    last = register_module("last", torch::nn::Linear(6, 2));
  }
  at::Tensor run(torch::nn::Linear block, const at::Tensor& input) {
    ++num_runs;
    return at::dropout(at::tanh(both(at::tanh(block(input)))), dropout, true);
  }
  at::Tensor part(const torch::nn::Linear& block, const at::Tensor& input) {
    if (keeps_all) return run(block, input);
    return activation_checkpoint([this, block](const at::Tensor& x) { return run(block, x); },
                                 input);
  }
  at::Tensor forward(const at::Tensor& input) { return last(part(second, part(first, input))); }
  const bool keeps_all;
  const double dropout;
  int num_runs = 0;
  torch::nn::Linear first{nullptr}, second{nullptr}, both{nullptr}, last{nullptr};
};

at::Tensor blocks_input(int rank) {
  return at::arange(24, at::kFloat).reshape({4, 6}) / 10 - 1 + 0.3F * static_cast<float>(rank);
}

void expect_same_gradients(Blocks& one, Blocks& other) {
  const auto a = one.parameters();
  const auto b = other.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i].grad(), b[i].grad())) << i;
}

TEST(Checkpoint, gives_the_gradients_that_a_part_that_keeps_all_gives) {
  for (const double dropout : {0.0, 0.5}) {
    Blocks kept(true, dropout), again(false, dropout);
    const at::Tensor input = blocks_input(0).requires_grad_();
    const at::Tensor other_input = blocks_input(0).requires_grad_();
    torch::manual_seed(7);
    const at::Tensor output = kept.forward(input);
    const at::Tensor state = at::rand({3});
    torch::manual_seed(7);
    const at::Tensor same = again.forward(other_input);
    EXPECT_TRUE(at::equal(output, same));
    EXPECT_TRUE(at::equal(at::rand({3}), state));
    output.square().sum().backward();
    same.square().sum().backward();
    EXPECT_EQ(again.num_runs, 4);
    expect_same_gradients(kept, again);
    EXPECT_TRUE(at::equal(input.grad(), other_input.grad()));
  }
}

TEST(Checkpoint, leaves_the_random_state_of_the_backward_pass_alone) {
  Blocks again(false, 0.5);
  const at::Tensor loss = again.forward(blocks_input(0)).sum();
  torch::manual_seed(11);
  const at::Tensor wanted = at::rand({3});
  torch::manual_seed(11);
  loss.backward();
  EXPECT_TRUE(at::equal(at::rand({3}), wanted));
}

TEST(Checkpoint, may_lie_within_another) {
  Blocks kept(true), again(true);
  const auto part = [&](const at::Tensor& x) {
    return again.run(
        again.second,
        activation_checkpoint([&](const at::Tensor& y) { return again.run(again.first, y); }, x));
  };
  const at::Tensor input = blocks_input(0).requires_grad_();
  kept.forward(input).sum().backward();
  again.last(activation_checkpoint(part, input)).sum().backward();
  expect_same_gradients(kept, again);
}

TEST(Checkpoint, keeps_nothing_where_no_gradients_are_wanted) {
  Blocks again(false);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(again.forward(blocks_input(0)).requires_grad());
}

TEST(Checkpoint, takes_and_gives_several_tensors) {
  const at::Tensor a = at::full({3}, 2.0F).requires_grad_();
  const at::Tensor b = at::full({3}, 3.0F).requires_grad_();
  const auto outputs = activation_checkpoint(
      [](const TensorList& inputs) {
        return TensorList{inputs[0] * inputs[1], inputs[0] + inputs[1], inputs[1].square()};
      },
      TensorList{a, b});
  (outputs[0].sum() + 10 * outputs[2].sum()).backward();
  EXPECT_TRUE(at::equal(a.grad(), at::full({3}, 3.0F)));
  EXPECT_TRUE(at::equal(b.grad(), at::full({3}, 62.0F)));
}

TEST(Checkpoint, that_throws_in_the_backward_pass_leaves_the_next_one_alone) {
  bool fails = false;
  const at::Tensor weight = at::ones({2}).requires_grad_();
  const auto part = [&](const at::Tensor& x) {
    if (fails) throw std::runtime_error("broken");
    return x * weight;
  };
  const at::Tensor loss = activation_checkpoint(part, at::ones({2})).sum();
  fails = true;
  EXPECT_THROW(loss.backward(), std::runtime_error);
  fails = false;
  activation_checkpoint(part, at::ones({2})).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::ones({2})));
}

TEST(Checkpoint, refuses_a_wrapper_s_forward_in_its_part) {
  for (const auto& result : harness::run_ranks(2, [](ProcessGroup& group) {
         DistributedDataParallel model(std::make_shared<torch::nn::LinearImpl>(3, 3),
                                       std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
         activation_checkpoint([&](const at::Tensor& x) { return model.forward(x); },
                               at::ones({2, 3}));
       })) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(result.error->what(), Says("module.in_checkpointed_part"));
  }
}

// A part that two checkpoints share must be averaged from the first pass on, in a bucket with all
// others and in a bucket of its own. This suite has its own process, because LibTorch 2 refuses a
// backward pass in a process whose parent ran one before the fork.
TEST(CheckpointProcesses, averages_what_several_parts_share) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20}) {
    const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
      Blocks whole(true);
      for (int rank = 0; rank < 2; ++rank) (whole.forward(blocks_input(rank)).sum() / 2).backward();
      DistributedDataParallel model(std::make_shared<Blocks>(false),
                                    std::shared_ptr<ProcessGroup>(&group, [](auto*) {}),
                                    {.buckets = {.first_bytes = bytes, .cap_bytes = bytes}});
      for (int step = 0; step < 3; ++step) {
        for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
        model.forward(blocks_input(group.rank())).sum().backward();
        const auto wanted = whole.parameters();
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          if (!at::allclose(model->parameters()[i].grad(), wanted[i].grad(), 1e-4, 1e-6))
            return "step " + std::to_string(step) + ": parameter " + std::to_string(i) + " differs";
        }
      }
      return std::string("right");
    });
    for (const auto& result : results) EXPECT_EQ(result.report, "right");
  }
}

}  // namespace
}  // namespace paceline
