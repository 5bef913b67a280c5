#include "paceline/training/parallel/sync_batch_norm.h"

#include <functional>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;
using Sizes = std::vector<std::int64_t>;
using torch::nn::BatchNormOptions;

constexpr std::int64_t kFeatures = 3;

at::Tensor random(const Sizes& sizes, std::uint64_t seed, at::ScalarType type = at::kFloat) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(type));
}

// The number of samples of a rank: unequal, and none on rank 1.
std::int64_t samples_of(int rank) { return rank == 1 ? 0 : 2 + rank * 3 % 5; }

struct WholeBatch {
  std::vector<at::Tensor> inputs, factors;  // one for each rank
  at::Tensor weight, bias, mean, variance;
  std::vector<at::Tensor> outputs, input_gradients;  // one for each rank
};

// One process normalises all samples. The loss is the sum of output^2 * factor; without the square
// it would not depend on the statistics.
WholeBatch whole_batch(int world, const Sizes& tail, at::ScalarType type, bool affine) {
  WholeBatch whole;
  Sizes counts;
  for (int rank = 0; rank < world; ++rank) {
    Sizes sizes = {samples_of(rank), kFeatures};
    sizes.insert(sizes.end(), tail.begin(), tail.end());
    whole.inputs.push_back(random(sizes, 10 + static_cast<std::uint64_t>(rank), type) * 2 + 1);
    whole.factors.push_back(random(sizes, 90 + static_cast<std::uint64_t>(rank), type));
    counts.push_back(sizes[0]);
  }
  if (affine) {
    whole.weight = random({kFeatures}, 1, type).requires_grad_();
    whole.bias = random({kFeatures}, 2, type).requires_grad_();
  }
  whole.mean = at::zeros({kFeatures}, type);
  whole.variance = at::ones({kFeatures}, type);
  const at::Tensor input = at::cat(whole.inputs).requires_grad_();
  const at::Tensor output = at::batch_norm(input, whole.weight, whole.bias, whole.mean,
                                           whole.variance, true, 0.1, 1e-5, false);
  (output.square() * at::cat(whole.factors)).sum().backward();
  whole.outputs = output.detach().split_with_sizes(counts);
  whole.input_gradients = input.grad().split_with_sizes(counts);
  return whole;
}

void expect_close(const at::Tensor& mine, const at::Tensor& wanted, const std::string& what) {
  const double tolerance = wanted.scalar_type() == at::kDouble ? 1e-10 : 2e-5;
  EXPECT_TRUE(at::allclose(mine, wanted, tolerance, tolerance))
      << what << ": largest difference " << (mine - wanted).abs().max().item<double>();
}

void expect_equal_to_the_whole_batch(ProcessGroup& group, const WholeBatch& whole) {
  const auto rank = static_cast<std::size_t>(group.rank());
  SyncBatchNorm norm(BatchNormOptions(kFeatures).affine(whole.weight.defined()), borrowed(group));
  norm->to(whole.mean.scalar_type());
  if (norm->options.affine()) {
    const at::NoGradGuard no_grad;
    norm->weight.copy_(whole.weight);
    norm->bias.copy_(whole.bias);
  }
  const at::Tensor input = whole.inputs[rank].clone().requires_grad_();
  const at::Tensor output = norm(input);
  (output.square() * whole.factors[rank]).sum().backward();
  EXPECT_EQ(output.scalar_type(), input.scalar_type());
  if (input.numel() > 0) {
    expect_close(output, whole.outputs[rank], "output");
    expect_close(input.grad(), whole.input_gradients[rank], "gradient of the input");
  }
  EXPECT_EQ(input.grad().sizes(), input.sizes());
  expect_close(norm->running_mean, whole.mean, "running mean");
  expect_close(norm->running_var, whole.variance, "running variance");
  if (!norm->options.affine()) return;
  for (const auto& [mine, wanted] :
       {std::pair(norm->weight, whole.weight), {norm->bias, whole.bias}}) {
    const at::Tensor sum = mine.grad().clone();
    all_reduce(group, sum);
    expect_close(sum, wanted.grad(), "gradient of weight or bias");
  }
}

TEST(SyncBatchNorm, equals_one_process_on_the_whole_batch_whatever_the_number_of_ranks) {
  for (int world = 1; world <= 8; ++world) {
    SCOPED_TRACE(world);
    const auto whole = whole_batch(world, {4, 5}, at::kFloat, true);
    run_ranks_ok(world,
                 [&](ProcessGroup& group) { expect_equal_to_the_whole_batch(group, whole); });
  }
}

TEST(SyncBatchNorm, takes_2_to_5_dimensions_affine_or_not_in_float32_and_float64) {
  for (const Sizes& tail : std::vector<Sizes>{{}, {7}, {4, 5}, {2, 3, 4}}) {
    for (const bool affine : {true, false}) {
      for (const auto type : {at::kFloat, at::kDouble}) {
        SCOPED_TRACE(std::to_string(tail.size()) + (affine ? ", affine, " : ", ") +
                     c10::toString(type));
        const auto whole = whole_batch(3, tail, type, affine);
        run_ranks_ok(3,
                     [&](ProcessGroup& group) { expect_equal_to_the_whole_batch(group, whole); });
      }
    }
  }
}

TEST(SyncBatchNormProcesses, equal_one_process_on_the_whole_batch) {
  for (const int world : {2, 3, 4}) {
    const auto results = harness::run_process_ranks(world, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      expect_equal_to_the_whole_batch(group, whole_batch(world, {4, 5}, at::kFloat, true));
      return std::string();
    });
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
  }
}

// The derivative of a sum over all ranks as a difference quotient, for each element of rank 0's
// input.
TEST(SyncBatchNorm, gradients_in_float64_are_the_differences) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const auto rank = static_cast<std::uint64_t>(group.rank());
    SyncBatchNorm norm(BatchNormOptions(2), borrowed(group));
    norm->to(at::kDouble);
    const at::Tensor input = random({3 - group.rank(), 2, 2}, rank, at::kDouble);
    const at::Tensor factor = random({3 - group.rank(), 2, 2}, rank + 9, at::kDouble);
    const auto loss = [&](const at::Tensor& x) { return (norm(x).pow(3) * factor).sum(); };
    const at::Tensor leaf = input.clone().requires_grad_();
    loss(leaf).backward();
    for (std::int64_t i = 0; i < 3 * 2 * 2; ++i) {
      constexpr double kStep = 1e-5;
      const auto total = [&](double step) {
        const at::NoGradGuard no_grad;
        at::Tensor moved = input.clone();
        if (rank == 0) moved.view(-1)[i] += step;
        return all_reduce_value(group, loss(moved).item<double>());
      };
      const double difference = (total(kStep) - total(-kStep)) / (2 * kStep);
      if (rank == 0) {
        EXPECT_NEAR(leaf.grad().view(-1)[i].item<double>(), difference, 1e-7) << "element " << i;
      }
    }
  });
}

TEST(SyncBatchNorm, running_statistics_have_the_same_bits_on_every_rank_and_in_every_run) {
  const auto run = [](at::Tensor& statistics) {
    run_ranks_ok(5, [&](ProcessGroup& group) {
      SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
      for (std::uint64_t step = 0; step < 3; ++step) {
        norm(random({1 + group.rank(), kFeatures, 6, 6},
                    step * 100 + static_cast<std::uint64_t>(group.rank())));
      }
      const at::Tensor mine = at::cat({norm->running_mean, norm->running_var});
      for (const auto& other : all_gather(group, mine)) EXPECT_TRUE(at::equal(other, mine));
      if (group.rank() == 0) statistics = mine;
    });
  };
  at::Tensor first, second;
  run(first);
  run(second);
  EXPECT_TRUE(at::equal(first, second));
}

TEST(SyncBatchNorm, without_a_momentum_the_running_statistics_are_averages_of_all_batches) {
  const auto options = BatchNormOptions(kFeatures).momentum(c10::nullopt);
  torch::nn::BatchNorm1d whole(options);
  for (std::uint64_t step = 0; step < 3; ++step)
    whole(at::cat({random({4, kFeatures}, step), random({4, kFeatures}, step + 50)}));
  run_ranks_ok(2, [&](ProcessGroup& group) {
    SyncBatchNorm norm(options, borrowed(group));
    for (std::uint64_t step = 0; step < 3; ++step)
      norm(random({4, kFeatures}, step + 50 * static_cast<std::uint64_t>(group.rank())));
    expect_close(norm->running_mean, whole->running_mean, "running mean");
    expect_close(norm->running_var, whole->running_var, "running variance");
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 3);
  });
}

TEST(SyncBatchNorm, evaluation_is_local_with_running_statistics_or_those_of_the_batch) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    for (const bool tracks : {true, false}) {
      const auto options = BatchNormOptions(kFeatures).track_running_stats(tracks);
      SyncBatchNorm norm(options, borrowed(group));
      torch::nn::BatchNorm2d local(options);
      norm->eval();
      local->eval();
      if (group.rank() == 1) continue;  // the other rank does not take part
      const auto input = random({4, kFeatures, 2, 2}, 1);
      EXPECT_TRUE(at::equal(norm(input), local(input))) << tracks;
    }
  });
}

TEST(SyncBatchNorm, without_running_statistics_training_normalises_over_the_ranks) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(kFeatures).track_running_stats(false), borrowed(group));
    const auto output = norm(random({4, kFeatures}, static_cast<std::uint64_t>(group.rank())));
    const auto all = all_gather_into_tensor(group, output.detach());
    EXPECT_TRUE(at::allclose(all.mean(0), at::zeros({kFeatures}), 0, 1e-6));
    EXPECT_TRUE(norm->buffers().empty());
  });
}

TEST(SyncBatchNorm, saved_weights_fit_batch_norm_and_the_other_way_round) {
  run_ranks_ok(1, [](ProcessGroup& group) {
    torch::nn::BatchNorm2d plain(kFeatures);
    plain(random({4, kFeatures, 2, 2}, 1));
    std::stringstream stream;
    torch::save(plain, stream);
    SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
    torch::load(norm, stream);
    EXPECT_TRUE(at::equal(norm->running_var, plain->running_var));
    EXPECT_EQ(norm->named_buffers().keys(), plain->named_buffers().keys());
    EXPECT_EQ(norm->named_parameters().keys(), plain->named_parameters().keys());

    norm(random({4, kFeatures, 2, 2}, 2));
    std::stringstream back;
    torch::save(norm, back);
    torch::load(plain, back);
    EXPECT_TRUE(at::equal(norm->running_var, plain->running_var));
    std::ostringstream text;
    text << *norm;
    EXPECT_EQ(text.str(),
              "paceline::SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=true, "
              "track_running_stats=true)");
  });
}

TEST(SyncBatchNorm, sixteen_bit_floats_are_computed_in_float32) {
  const auto whole = whole_batch(3, {4}, at::kFloat, true);
  run_ranks_ok(3, [&](ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
    {
      const at::NoGradGuard no_grad;
      norm->weight.copy_(whole.weight);
      norm->bias.copy_(whole.bias);
    }
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto input = whole.inputs[rank].to(at::kBFloat16).requires_grad_();
    const auto output = norm(input);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.sum().backward();
    EXPECT_EQ(input.grad().scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::allclose(output.to(at::kFloat), whole.outputs[rank], 0.05, 0.05));
  });
}

TEST(SyncBatchNorm, keeps_the_memory_format_and_does_not_change_its_input) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
    const auto input = random({2, kFeatures, 4, 4}, 3).contiguous(at::MemoryFormat::ChannelsLast);
    const auto before = input.clone();
    const auto output = norm(input);
    EXPECT_TRUE(output.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(at::equal(input, before));
  });
}

struct NormNet : torch::nn::Module {
  explicit NormNet(const std::function<torch::nn::AnyModule(std::int64_t)>& make_norm) {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3)));
    norm = make_norm(6);
    register_module("norm", norm.ptr());
    second = register_module("second", torch::nn::Linear(6, 4));
  }
  at::Tensor forward(const at::Tensor& input) {
    return second(at::relu(norm.forward(first(input))).mean({2, 3}));
  }
  torch::nn::Conv2d first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::AnyModule norm;
};

void set_parameters(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::uint64_t seed = 7;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++)) * 0.3);
  }
}

// Several steps, so that a wrong statistic or gradient would grow.
TEST(SyncBatchNorm, a_distributed_training_equals_one_process_on_the_whole_batch) {
  constexpr int kWorld = 4;
  constexpr int kSteps = 5;
  const auto images = [](int step, int rank) {
    return random({6, 2, 5, 5}, static_cast<std::uint64_t>(step * 10 + rank));
  };
  const auto make_plain = [](std::int64_t n) {
    return torch::nn::AnyModule(torch::nn::BatchNorm2d(n));
  };
  const auto whole = std::make_shared<NormNet>(make_plain);
  set_parameters(*whole);
  torch::optim::SGD optimizer(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < kWorld; ++rank) parts.push_back(images(step, rank));
    optimizer.zero_grad();
    whole->forward(at::cat(parts)).square().mean().backward();
    optimizer.step();
  }
  run_ranks_ok(kWorld, [&](ProcessGroup& group) {
    const auto net = std::make_shared<NormNet>(sync_batch_norm(borrowed(group)));
    set_parameters(*net);
    DistributedDataParallel model(net, borrowed(group),
                                  {.buckets = {.first_bytes = 64, .cap_bytes = 200}});
    torch::optim::SGD mine(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < kSteps; ++step) {
      mine.zero_grad();
      model(images(step, group.rank())).square().mean().backward();
      mine.step();
    }
    const auto wanted = whole->named_parameters();
    for (const auto& item : net->named_parameters())
      expect_close(item.value(), wanted[item.key()], item.key());
    const auto buffers = whole->named_buffers();
    for (const auto& item : net->named_buffers())
      expect_close(item.value().to(at::kFloat), buffers[item.key()].to(at::kFloat), item.key());
  });
}

// ---- bad input and faults

std::string what_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(SyncBatchNorm, a_rank_that_misses_the_forward_pass_is_an_error_that_says_so) {
  for (const bool leaves : {true, false}) {
    const auto results =
        run_ranks(3,
                  [&](ProcessGroup& group) {
                    SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
                    if (group.rank() != 1) {
                      norm(random({2, kFeatures}, 1));
                    } else if (!leaves) {
                      all_reduce(group, at::zeros({4}));
                    }
                  },
                  {.group_timeout = std::chrono::milliseconds(2000)});
    for (const std::size_t rank : {0U, 2U}) {
      ASSERT_TRUE(results[rank].error) << leaves;
      EXPECT_THAT(results[rank].error->what(),
                  testing::AllOf(Says("batch_norm.pass", fmt::format("rank {}: forward", rank), 3),
                                 testing::HasSubstr("rank 1")));
    }
  }
}

TEST(SyncBatchNorm, a_rank_that_misses_the_backward_pass_is_an_error_that_says_so) {
  const auto results = run_ranks(2,
                                 [](ProcessGroup& group) {
                                   SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
                                   const auto input = random({2, kFeatures}, 1).requires_grad_();
                                   const auto output = norm(input);
                                   if (group.rank() == 0) output.sum().backward();
                                 },
                                 {.group_timeout = std::chrono::milliseconds(2000)});
  ASSERT_TRUE(results[0].error);
  EXPECT_THAT(results[0].error->what(), Says("batch_norm.pass", "rank 0: backward"));
}

TEST(SyncBatchNorm, other_numbers_of_features_are_an_error_on_every_rank) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    const std::int64_t features = 3 + group.rank();
    SyncBatchNorm norm(BatchNormOptions(features), borrowed(group));
    norm(random({2, features}, 1));
  });
  for (const auto& result : results) EXPECT_TRUE(result.error);
}

TEST(SyncBatchNorm, a_single_value_is_an_error_on_every_rank_and_no_values_are_none) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
    const std::string text = what_of([&] { norm(random({group.rank() == 2, kFeatures}, 1)); });
    EXPECT_THAT(text, Says("batch_norm.single_value"));

    const auto empty = at::empty({0, kFeatures, 2, 2}).requires_grad_();
    norm(empty).sum().backward();
    EXPECT_EQ(empty.grad().sizes(), empty.sizes());
    EXPECT_TRUE(at::equal(norm->weight.grad(), at::zeros({kFeatures})));
    EXPECT_TRUE(at::equal(norm->running_mean, at::zeros({kFeatures})));
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 0);
  });
}

TEST(SyncBatchNorm, refuses_inputs_that_it_cannot_take_before_it_communicates) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    if (group.rank() == 1) return;
    SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
    EXPECT_THAT(what_of([&] { norm(at::zeros({kFeatures})); }),
                Says("batch_norm.input_refused", 1));
    EXPECT_THAT(what_of([&] { norm(at::zeros({2, 4})); }), Says("batch_norm.input_refused", 2, 4));
    EXPECT_NE(what_of([&] {
                norm(at::zeros({2, kFeatures}, at::kLong));
              }).find("Long"),
              std::string::npos);
    EXPECT_NE(what_of([] { SyncBatchNorm none(BatchNormOptions(3), nullptr); }).find("group"),
              std::string::npos);
  });
}

TEST(SyncBatchNorm, a_second_derivative_is_an_error) {
  run_ranks_ok(1, [](ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(kFeatures), borrowed(group));
    const auto input = random({4, kFeatures}, 1).requires_grad_();
    const auto text = what_of([&] {
      torch::autograd::grad({norm(input).square().sum()}, {input}, {}, true, /*create_graph=*/true);
    });
    EXPECT_THAT(text, Says("batch_norm.derived_twice"));
  });
}

}  // namespace
}  // namespace paceline
