// Parameters that some ranks, or all ranks, do not use in a pass, and parameters that change
// whether they require a gradient.

#include <random>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/gradient_buckets.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;

constexpr std::int64_t kParts = 4;
constexpr std::int64_t kSize = 5;

using Uses = std::vector<bool>;

// A sum of the requested parts, so that the gradient of part i is row i of the input.
struct Parts : torch::nn::Module {
  Parts() {
    for (std::int64_t i = 0; i < kParts; ++i)
      parts.push_back(register_parameter("part" + std::to_string(i), at::ones({kSize})));
  }
  at::Tensor forward(const at::Tensor& input, const Uses& uses) {
    at::Tensor sum = at::zeros({});
    for (std::int64_t i = 0; i < kParts; ++i) {
      const auto index = static_cast<std::size_t>(i);
      if (uses[index]) sum = sum + (parts[index] * input[i]).sum();
    }
    return sum;
  }
  std::vector<at::Tensor> parts;
};

at::Tensor rows_of(int rank, int step = 0) {
  return at::arange(kParts * kSize, at::kFloat).reshape({kParts, kSize}) + 10.F * rank + step;
}

// All gradients in one bucket; each in its own bucket; each reduced in place.
const std::vector<BucketLimits> kLimits = {
    {}, {.first_bytes = 1, .cap_bytes = 1}, {.alone_bytes = 1}};

struct UnusedParameters : testing::TestWithParam<std::size_t> {
  DistributedDataParallelOptions options() const { return {.buckets = kLimits[GetParam()]}; }
};

TEST_P(UnusedParameters, count_as_zero_on_a_rank_that_does_not_use_them) {
  run_ranks_ok(3, [&](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Parts>(), borrowed(group), options());
    for (int step = 0; step < 3; ++step) {
      for (auto& part : model.module().parts) part.mutable_grad() = at::Tensor();
      const bool uses = group.rank() != 1;
      model.forward(rows_of(group.rank(), step), Uses{true, uses, true, uses}).backward();
      const auto third = [&](int rank) { return rows_of(rank, step) / 3; };
      const auto& parts = model.module().parts;
      EXPECT_TRUE(at::allclose(parts[0].grad(), (third(0) + third(1) + third(2))[0])) << step;
      EXPECT_TRUE(at::allclose(parts[1].grad(), (third(0) + third(2))[1])) << step;
      EXPECT_TRUE(at::allclose(parts[3].grad(), (third(0) + third(2))[3])) << step;
    }
  });
}

// A gradient that was in a bucket also keeps its exact bits. It must not be averaged over the
// ranks: the rounded mean of three equal numbers may differ from that number.
TEST_P(UnusedParameters, keep_their_gradient_where_no_rank_uses_them) {
  run_ranks_ok(3, [&](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Parts>(), borrowed(group), options());
    auto& parts = model.module().parts;
    model.forward(rows_of(group.rank()), Uses{true, true, false, false}).backward();
    EXPECT_FALSE(parts[2].grad().defined());
    parts[1].mutable_grad().fill_(0.1F);
    parts[3].mutable_grad() = at::full({kSize}, 0.7F);
    model.forward(rows_of(group.rank()), Uses{true, false, false, false}).backward();
    EXPECT_TRUE(at::equal(parts[1].grad(), at::full({kSize}, 0.1F)));
    EXPECT_TRUE(at::equal(parts[3].grad(), at::full({kSize}, 0.7F)));
    EXPECT_FALSE(parts[2].grad().defined());
  });
}

// Only rank 0 uses part 1, and only in passes without communication.
TEST_P(UnusedParameters, that_earlier_passes_used_bring_what_accumulated) {
  run_ranks_ok(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Parts>(), borrowed(group), options());
    const std::vector<bool> first = {true, group.rank() == 0, true, true};
    const std::vector<bool> second = {true, false, true, true};
    for (int step = 0; step < 2; ++step) {
      for (auto& part : model.module().parts) part.mutable_grad() = at::Tensor();
      {
        const auto paused = model.no_sync();
        model.forward(rows_of(group.rank()), first).backward();
      }
      model.forward(rows_of(group.rank()), second).backward();
      const auto& parts = model.module().parts;
      EXPECT_TRUE(at::allclose(parts[0].grad(), (rows_of(0) + rows_of(1))[0]));
      EXPECT_TRUE(at::allclose(parts[1].grad(), rows_of(0)[1] / 2));
    }
  });
}

// In every step each rank draws the parts that it uses. All ranks draw the same random numbers, so
// each knows the expected averages.
TEST_P(UnusedParameters, may_be_others_in_every_step) {
  const auto seed = harness::random_seed();
  for (int world = 1; world <= 4; ++world) {
    run_ranks_ok(world, [&](ProcessGroup& group) {
      std::mt19937 random(seed);
      DistributedDataParallel model(std::make_shared<Parts>(), borrowed(group), options());
      auto& parts = model.module().parts;
      std::vector<at::Tensor> expected(kParts);
      for (int step = 0; step < 20; ++step) {
        if (random() % 2 == 0) {  // otherwise the gradients accumulate
          for (std::size_t i = 0; i < kParts; ++i)
            expected[i] = parts[i].mutable_grad() = at::Tensor();
        }
        std::vector<bool> own;
        std::vector<at::Tensor> sums(kParts);
        for (int rank = 0; rank < world; ++rank) {
          std::vector<bool> uses;
          for (int i = 0; i < kParts; ++i) uses.push_back(i == rank || random() % 3 == 0);
          for (std::size_t i = 0; i < kParts; ++i) {
            if (!uses[i]) continue;
            const at::Tensor row = rows_of(rank, step)[static_cast<std::int64_t>(i)] / world;
            sums[i] = sums[i].defined() ? sums[i] + row : row;
          }
          if (rank == group.rank()) own = uses;
        }
        model.forward(rows_of(group.rank(), step), own).backward();
        for (std::size_t i = 0; i < kParts; ++i) {
          if (sums[i].defined())
            expected[i] = expected[i].defined() ? expected[i] + sums[i] : sums[i];
          ASSERT_EQ(parts[i].grad().defined(), expected[i].defined()) << step << " " << i;
          if (!expected[i].defined()) continue;
          EXPECT_TRUE(at::allclose(parts[i].grad(), expected[i], 1e-4, 1e-4)) << step << " " << i;
        }
      }
    });
  }
}

TEST_P(UnusedParameters, that_are_frozen_and_thawed_follow) {
  run_ranks_ok(2, [&](ProcessGroup& group) {
    auto module = std::make_shared<Parts>();
    module->parts[3].set_requires_grad(false);
    DistributedDataParallel model(module, borrowed(group), options());
    const auto mean = (rows_of(0) + rows_of(1)) / 2;
    const auto trains = [&](const std::vector<bool>& trained) {
      for (std::size_t i = 0; i < kParts; ++i) {
        module->parts[i].mutable_grad() = at::Tensor();
        module->parts[i].set_requires_grad(trained[i]);
      }
      for (int step = 0; step < 2; ++step) {
        for (auto& part : module->parts) part.mutable_grad() = at::Tensor();
        model.forward(rows_of(group.rank()), Uses{true, true, true, true}).backward();
        for (std::size_t i = 0; i < kParts; ++i) {
          const at::Tensor& gradient = module->parts[i].grad();
          ASSERT_EQ(gradient.defined(), trained[i]) << i;
          if (!trained[i]) continue;
          EXPECT_TRUE(at::allclose(gradient, mean[static_cast<std::int64_t>(i)])) << i;
        }
      }
    };
    trains({true, true, true, false});
    trains({true, false, true, true});
    trains({true, true, false, true});
  });
}

constexpr const char* kLimitNames[] = {"one", "each", "none"};
INSTANTIATE_TEST_SUITE_P(Buckets, UnusedParameters, testing::Values(0, 1, 2),
                         [](const auto& info) { return std::string(kLimitNames[info.param]); });

TEST(FrozenParameters, that_differ_between_ranks_later_are_an_error_that_names_the_first) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Parts>(), borrowed(group));
    model.module().parts[group.rank() == 0 ? 1 : 2].set_requires_grad(false);
    model.forward(rows_of(0), Uses{true, true, true, true}).backward();
    ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_NE(std::string(result.error->what()).find("part1"), std::string::npos)
        << result.error->what();
  }
}

TEST(RequireAllUsed, names_on_all_ranks_what_one_did_not_use) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Parts>(), borrowed(group),
                                  {.require_all_used = true});
    model.forward(rows_of(0), Uses{true, true, true, true}).backward();
    model.forward(rows_of(0), Uses{true, true, group.rank() == 0, true}).backward();
    ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
  });
  ASSERT_TRUE(results[1].error);
  EXPECT_EQ(results[1].error->code(), ErrorCode::kInvalid);
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kAborted);
  for (const auto& result : results) {
    EXPECT_NE(std::string(result.error->what()).find("part2"), std::string::npos)
        << result.error->what();
  }
}

// A generator and a discriminator (the judge), each with its own wrapper, in one group. The ranks
// use different parts of the judge, so its buckets start at different times.
TEST(TwoModules, of_one_group_communicate_in_one_order) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const DistributedDataParallelOptions small{.buckets = {.first_bytes = 1, .cap_bytes = 1}};
    DistributedDataParallel generator(std::make_shared<Parts>(), borrowed(group), small);
    DistributedDataParallel judge(std::make_shared<Parts>(), borrowed(group), small);
    for (int step = 0; step < 6; ++step) {
      for (auto* model : {&generator, &judge}) {
        for (auto& part : model->module().parts) part.mutable_grad() = at::Tensor();
      }
      const bool odd = (group.rank() + step) % 2 != 0;
      const at::Tensor made =
          generator.forward(rows_of(group.rank()), Uses{true, odd, true, true}) * at::ones({4, 5});
      if (step % 2 == 0) {  // a step of the judge
        judge.forward(made.detach(), Uses{true, !odd, odd, true}).backward();
        EXPECT_FALSE(generator.module().parts[0].grad().defined());
        continue;
      }
      judge.forward(made, Uses{true, !odd, odd, true}).backward();
      // Every rank uses three of the judge's parts, and each adds five elements.
      const at::Tensor mean = (rows_of(0) + rows_of(1) + rows_of(2))[0] / 3;
      EXPECT_TRUE(at::allclose(generator.module().parts[0].grad(), mean * 15.0)) << step;
    }
  });
}

// Both modules have the same shape, so that nothing else distinguishes them.
TEST(TwoModules, called_in_different_orders_are_an_error_that_says_so) {
  const auto results = run_ranks(3, [](ProcessGroup& group) {
    DistributedDataParallel one(std::make_shared<Parts>(), borrowed(group));
    DistributedDataParallel other(std::make_shared<Parts>(), borrowed(group));
    const Uses all = {true, true, true, true};
    one.forward(rows_of(0), all).backward();
    other.forward(rows_of(0), all).backward();
    auto& first = group.rank() == 1 ? other : one;
    first.forward(rows_of(0), all).backward();
  });
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_TRUE(results[rank].error);
    EXPECT_EQ(results[rank].error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(results[rank].error->what(),
                Says("module.order_differs", rank == 1 ? 1 : 0, rank == 1 ? 0 : 1));
  }
}

}  // namespace
}  // namespace paceline
