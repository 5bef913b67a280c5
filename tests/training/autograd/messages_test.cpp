#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/autograd/differentiable_collectives.h"
#include "paceline/training/autograd/regions.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/shaped_messages.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

GroupPtr held(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

// A chain over all ranks: each rank multiplies by its own weight.
TEST(GradientMessages, a_chain_of_ranks_has_the_gradients_of_one) {
  for (int world_size = 2; world_size <= 8; ++world_size) {
    harness::run_ranks_ok(world_size, [&](ProcessGroup& own) {
      const auto group = held(own);
      const int rank = own.rank(), last = world_size - 1;
      std::vector<at::Tensor> weights;
      for (int i = 0; i < world_size; ++i)
        weights.push_back(
            (at::arange(9, at::kDouble).reshape({3, 3}) * 0.1 + i).sin().requires_grad_());
      const auto input = at::arange(6, at::kDouble).reshape({2, 3}).requires_grad_();
      auto expected = input;
      for (const auto& weight : weights) expected = at::tanh(expected.matmul(weight));
      const auto whole = torch::autograd::grad({expected.sum()}, weights);

      auto hidden = rank == 0 ? input : recv_with_gradient(group, rank - 1, 5);
      hidden = at::tanh(hidden.matmul(weights[static_cast<std::size_t>(rank)]));
      const auto loss =
          rank == last ? hidden.sum() : send_with_gradient(group, hidden, rank + 1, 5);
      if (rank != last) {
        EXPECT_EQ(loss.item<double>(), 0);
      }
      loss.backward();
      EXPECT_TRUE(at::equal(weights[static_cast<std::size_t>(rank)].grad(),
                            whole[static_cast<std::size_t>(rank)]));
    });
  }
}

TEST(GradientMessages, a_gradient_of_another_shape_is_named) {
  harness::run_ranks_ok(2, [](ProcessGroup& own) {
    const auto group = held(own);
    if (own.rank() == 1) {
      recv_with_shape(own, 0);
      send_with_shape(own, at::zeros({3}), 0);
      return;
    }
    const auto sent = send_with_gradient(group, at::zeros({2, 2}).requires_grad_(), 1);
    expect_error(ErrorCode::kInvalid,
                 {"rank 0", "gradient from rank 1 is Float [3]", "sent is Float [2, 2]"},
                 [&] { sent.backward(); });
  });
}

}  // namespace
}  // namespace paceline
