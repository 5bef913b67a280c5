// Copies of a parameter on the ranks of several stages.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/pipeline/stage_weights.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;

TEST(TiedWeights, copies_begin_alike_and_their_gradients_are_added_up) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks_ok(ranks, [](ProcessGroup& group) {
      const int last = group.world_size() - 1;
      const bool has_copy = group.rank() == 0 || group.rank() == last;
      const at::Tensor weight = torch::full({2, 3}, 1.0 + group.rank()).requires_grad_();
      const at::Tensor frozen = torch::full({2}, 5.0 + group.rank()).requires_grad_();
      std::vector<at::Tensor> own;
      if (has_copy) own = {weight, frozen};
      TiedWeights tied(group, own);
      for (int step = 0; step < 2; ++step) {
        weight.mutable_grad() = torch::full({2, 3}, 10.0 + group.rank());
        tied.add_gradients();
        const double sum = last == 0 ? 10 : 20 + last;
        const double wanted = has_copy ? sum : 10 + group.rank();
        EXPECT_TRUE(torch::equal(weight.grad(), torch::full({2, 3}, wanted)));
      }
      EXPECT_TRUE(torch::equal(weight, torch::full({2, 3}, has_copy ? 1.0 : 1.0 + group.rank())));
      // No stage uses it, so its gradient is zero.
      EXPECT_EQ(frozen.grad().defined(), has_copy);
    });
  }
}

TEST(TiedWeights, other_numbers_of_copies_are_an_error_on_every_rank_that_has_any) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    std::vector<at::Tensor> own;
    for (int i = 0; i < group.rank(); ++i) own.push_back(torch::ones({2}).requires_grad_());
    if (own.empty()) {
      TiedWeights(group, own).add_gradients();
    } else {
      expect_error(ErrorCode::kInvalid, {"tied weights", "1 to 2 on the ranks"},
                   [&] { TiedWeights(group, own); });
    }
  });
}

}  // namespace
}  // namespace paceline
