#include "paceline/training/parallel/communication_hook.h"

#include <atomic>
#include <functional>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;
using HookMaker = std::function<std::shared_ptr<CommunicationHook>(ProcessGroup&)>;

// A matrix and a vector; forward() is given their gradients.
struct Weights : torch::nn::Module {
  Weights() {
    matrix = register_parameter("matrix", at::zeros({24, 16}));
    vector = register_parameter("vector", at::zeros({24}));
  }
  at::Tensor forward(const at::Tensor& of_matrix, const at::Tensor& of_vector) {
    return (matrix * of_matrix).sum() + (vector * of_vector).sum();
  }
  at::Tensor matrix, vector;
};

at::Tensor random(int rank, int step, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + rank));
  return at::randn(sizes, generator);
}

at::Tensor mean_of(int world, const std::function<at::Tensor(int rank)>& of_rank) {
  at::Tensor sum = of_rank(0).clone();
  for (int rank = 1; rank < world; ++rank) sum += of_rank(rank);
  return sum / world;
}

struct Gradients {
  at::Tensor matrix, vector;
};

// The averaged gradients of one step in which this rank's gradients are `given`.
Gradients step_with(DistributedDataParallel<Weights>& model, const Gradients& given) {
  model.module().matrix.mutable_grad() = at::Tensor();
  model.module().vector.mutable_grad() = at::Tensor();
  model.forward(given.matrix, given.vector).backward();
  return {model.module().matrix.grad(), model.module().vector.grad()};
}

Gradients given_by(int rank, int step) {
  return {random(rank, step, {24, 16}), random(rank, step + 1000, {24})};
}

TEST(CompressHook, averages_in_16_bits_and_gives_all_ranks_the_same) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const bool one_bucket : {true, false}) {
      run_ranks_ok(3, [&](ProcessGroup& group) {
        DistributedDataParallelOptions options;
        if (!one_bucket) options.buckets = {.first_bytes = 1, .cap_bytes = 1};
        DistributedDataParallel model(std::make_shared<Weights>(), borrowed(group), options);
        model.register_comm_hook(std::make_shared<CompressHook>(type));
        for (int step = 0; step < 3; ++step) {
          const auto got = step_with(model, given_by(group.rank(), step));
          const auto wanted = mean_of(3, [&](int rank) { return given_by(rank, step).matrix; });
          const double tolerance = type == at::kHalf ? 2e-3 : 2e-2;
          EXPECT_TRUE(at::allclose(got.matrix, wanted, tolerance, tolerance));
          EXPECT_TRUE(at::equal(got.matrix, got.matrix.to(type).to(at::kFloat)));
          const at::Tensor other = got.matrix.clone();
          broadcast(group, other, 0);
          EXPECT_TRUE(at::equal(other, got.matrix));
        }
        model.register_comm_hook(nullptr);
        const auto got = step_with(model, given_by(group.rank(), 7));
        EXPECT_TRUE(at::allclose(got.matrix,
                                 mean_of(3, [](int rank) { return given_by(rank, 7).matrix; })));
      });
    }
  }
}

TEST(PowerSGDHook, sends_gradients_whole_before_its_start_and_those_that_gain_nothing) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Weights>(), borrowed(group));
    model.register_comm_hook(std::make_shared<PowerSGDHook>(PowerSGDOptions{.start_step = 2}));
    for (int step = 0; step < 4; ++step) {
      const auto got = step_with(model, given_by(group.rank(), step));
      const auto wanted = mean_of(2, [&](int rank) { return given_by(rank, step).matrix; });
      EXPECT_EQ(at::allclose(got.matrix, wanted, 1e-4, 1e-5), step < 2) << step;
      EXPECT_TRUE(at::allclose(got.vector,
                               mean_of(2, [&](int rank) { return given_by(rank, step).vector; })));
      if (step < 2) continue;
      EXPECT_LE(at::linalg_matrix_rank(got.matrix.to(at::kDouble), 1e-5).item<int>(), 1);
    }
  });
}

// The gradient and its mean have rank 3, so factors of rank 4 hold all of it.
TEST(PowerSGDHook, loses_nothing_of_a_gradient_of_low_rank) {
  for (const bool warm : {true, false}) {
    run_ranks_ok(2, [&](ProcessGroup& group) {
      DistributedDataParallel model(std::make_shared<Weights>(), borrowed(group));
      model.register_comm_hook(std::make_shared<PowerSGDHook>(
          PowerSGDOptions{.rank = 4, .start_step = 0, .warm_start = warm}));
      const at::Tensor basis = random(9, 9, {3, 16});
      const auto matrix = [&](int rank, int step) { return random(rank, step, {24, 3}).mm(basis); };
      for (int step = 0; step < 3; ++step) {
        const auto got = step_with(model, {matrix(group.rank(), step), at::ones({24})});
        const auto wanted = mean_of(2, [&](int rank) { return matrix(rank, step); });
        EXPECT_TRUE(at::allclose(got.matrix, wanted, 1e-3, 1e-4)) << step;
      }
    });
  }
}

// Everything that a hook holds back is sent later. So the sum over many steps differs from the
// exact one only by the last errors, which do not grow.
template <class Hook>
void expect_feedback(const std::function<std::shared_ptr<Hook>()>& make) {
  run_ranks_ok(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Weights>(), borrowed(group));
    model.register_comm_hook(make());
    const at::Tensor steady = random(3, 3, {24, 16});
    at::Tensor out = at::zeros({24, 16});
    constexpr int kSteps = 200;
    for (int step = 0; step < kSteps; ++step)
      out += step_with(model, {steady * (group.rank() + 1), at::ones({24})}).matrix;
    const double left = (out / kSteps - 1.5 * steady).norm().item<double>();
    EXPECT_LT(left, 0.15 * steady.norm().item<double>());
  });
}

TEST(PowerSGDHook, brings_later_what_it_left_out) {
  expect_feedback<PowerSGDHook>(
      [] { return std::make_shared<PowerSGDHook>(PowerSGDOptions{.rank = 1, .start_step = 0}); });
}

TEST(TopKHook, brings_later_what_it_left_out) {
  expect_feedback<TopKHook>([] { return std::make_shared<TopKHook>(0.1); });
}

TEST(TopKHook, averages_the_largest_elements_of_each_rank) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Weights>(), borrowed(group));
    // One bucket has 384 + 24 elements and padding, 416 in total.
    model.register_comm_hook(std::make_shared<TopKHook>(2.0 / 416));
    at::Tensor matrix = at::full({24, 16}, 0.01F);
    matrix[group.rank()][3] = -8;
    matrix[5][5] = 4;
    const auto got = step_with(model, {matrix, at::zeros({24})});
    at::Tensor wanted = at::zeros({24, 16});
    wanted[0][3] = wanted[1][3] = -4;
    wanted[5][5] = 4;
    EXPECT_TRUE(at::equal(got.matrix, wanted));
  });
}

TEST(TopKHook, of_all_elements_is_the_mean) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Weights>(), borrowed(group));
    model.register_comm_hook(std::make_shared<TopKHook>(1));
    const auto got = step_with(model, given_by(group.rank(), 0));
    EXPECT_TRUE(
        at::allclose(got.matrix, mean_of(3, [](int rank) { return given_by(rank, 0).matrix; })));
  });
}

struct Throwing : CommunicationHook {
  explicit Throwing(bool throws) : throws(throws) {}
  std::string name() const override { return "throwing"; }
  WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) override {
    if (round == 1 && throws) throw std::runtime_error("no more paper");
    return round == 0 ? all_reduce(group, bucket.flat, ReduceOp::kMean, {.async_op = true})
                      : nullptr;
  }
  const bool throws;
};

TEST(CommunicationHook, that_throws_on_one_rank_is_an_error_on_all_that_says_why) {
  const auto results = run_ranks(3, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Weights>(), borrowed(group));
    model.register_comm_hook(std::make_shared<Throwing>(group.rank() == 1));
    for (int step = 0; step < 2; ++step) step_with(model, given_by(group.rank(), step));
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), Says("hook.failed", "throwing", 1, 0, "no more paper"));
  }
}

TEST(CommunicationHook, that_differs_between_ranks_is_an_error_that_shows_all) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Weights>(), borrowed(group));
    std::shared_ptr<CommunicationHook> hook;
    if (group.rank() == 1) hook = std::make_shared<PowerSGDHook>(PowerSGDOptions{.rank = 2});
    model.register_comm_hook(hook);
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(result.error->what(), Says("hooks.differ", "none, power_sgd (rank 2,"));
  }
}

TEST(CommunicationHook, has_a_name_with_every_option) {
  std::set<std::string> names = {TopKHook(0.01).name(), TopKHook(0.02).name(),
                                 CompressHook(at::kHalf).name(),
                                 CompressHook(at::kBFloat16).name()};
  for (const PowerSGDOptions& options :
       {PowerSGDOptions{}, PowerSGDOptions{.rank = 2}, PowerSGDOptions{.start_step = 2},
        PowerSGDOptions{.min_compression_rate = 3}, PowerSGDOptions{.use_error_feedback = false},
        PowerSGDOptions{.warm_start = false}, PowerSGDOptions{.orthogonalization_epsilon = 1e-8},
        PowerSGDOptions{.seed = 1}}) {
    names.insert(PowerSGDHook(options).name());
  }
  EXPECT_EQ(names.size(), 12U);
}

// Records the gradients' sizes in the order of the buckets, which follows the order in which rank 0
// computed the gradients.
struct Spy : CommunicationHook {
  std::string name() const override { return "spy"; }
  void prepare(ProcessGroup&, const std::vector<GradientBucket>& buckets) override {
    sizes.clear();
    for (const auto& bucket : buckets) {
      for (const auto& gradient : bucket.gradients) sizes.push_back(gradient.numel());
    }
  }
  WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) override {
    return round == 0 ? all_reduce(group, bucket.flat, ReduceOp::kMean, {.async_op = true})
                      : nullptr;
  }
  std::vector<std::int64_t> sizes;
};

TEST(CommunicationHook, is_given_buckets_in_the_order_of_gradients) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    // The first layer is registered last.
    struct Reversed : torch::nn::Module {
      Reversed() {
        last = register_parameter("last", at::ones({3}));
        middle = register_parameter("middle", at::ones({1}));
        first = register_parameter("first", at::ones({2}));
      }
      at::Tensor forward(const at::Tensor& x) {
        const at::Tensor inner = ((x * first).sum() * middle).sum();
        return inner * last.sum();
      }
      at::Tensor last, middle, first;
    };
    DistributedDataParallel model(std::make_shared<Reversed>(), borrowed(group));
    const auto spy = std::make_shared<Spy>();
    model.register_comm_hook(spy);
    model.forward(at::ones({2})).backward();
    EXPECT_EQ(spy->sizes, (std::vector<std::int64_t>{3, 1, 2}));
  });
}

}  // namespace
}  // namespace paceline
