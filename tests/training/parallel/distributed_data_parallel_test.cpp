#include "paceline/training/parallel/distributed_data_parallel.h"

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <sstream>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;

struct Net : torch::nn::Module {
  explicit Net(std::int64_t width = 32) {
    first = register_module("first", torch::nn::Linear(8, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    second = register_module("second", torch::nn::Linear(width, 4));
  }
  at::Tensor forward(const at::Tensor& input) { return second(torch::relu(norm(first(input)))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

struct Plain : torch::nn::Module {
  Plain() {
    first = register_module("first", torch::nn::Linear(8, 300));
    second = register_module("second", torch::nn::Linear(300, 4));
  }
  at::Tensor forward(const at::Tensor& input) { return second(torch::relu(first(input))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

// LibTorch's generator is global and the ranks are threads, so they take turns.
template <class Module>
std::shared_ptr<Module> make_module(int seed) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  return std::make_shared<Module>();
}

at::Tensor batch(int seed, std::int64_t size) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  return at::randn({size, 8}, generator);
}

const DistributedDataParallelOptions kSmallBuckets{
    .buckets = {.first_bytes = 64, .cap_bytes = 4096}};

TEST(DistributedDataParallel, everybody_gets_rank_0s_parameters) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Net>(group.rank()), shared);
    const auto expected = make_module<Net>(0);
    const auto wanted = expected->parameters();
    const auto got = model->parameters();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], wanted[i]));
  });
}

// If all ranks have equally large parts of a batch, the average of their gradients is the gradient
// of the whole batch.
TEST(DistributedDataParallel, gradients_equal_those_of_the_whole_batch) {
  for (const int world : {1, 2, 3}) {
    const auto whole = make_module<Plain>(0);
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < world; ++rank) parts.push_back(batch(rank, 16));
    whole->forward(at::cat(parts)).square().mean().backward();
    run_ranks_ok(world, [&](ProcessGroup& group) {
      const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
      DistributedDataParallel model(make_module<Plain>(0), shared, kSmallBuckets);
      for (int round = 0; round < 3; ++round) {
        for (auto& parameter : model->parameters()) {
          if (round == 1) parameter.mutable_grad() = at::Tensor();
          if (round == 2) parameter.mutable_grad().zero_();
        }
        model.forward(parts[static_cast<std::size_t>(group.rank())]).square().mean().backward();
        const auto wanted = whole->parameters();
        const auto got = model->parameters();
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(at::allclose(got[i].grad(), wanted[i].grad(), 1e-4, 1e-6))
              << "parameter " << i;
        }
      }
      EXPECT_EQ(model.reducer().num_buckets() > 1, world > 1);
    });
  }
}

TEST(DistributedDataParallel, gradients_have_the_same_bits_on_every_rank) {
  run_ranks_ok(4, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Plain>(0), shared, kSmallBuckets);
    model.forward(batch(group.rank(), 8)).square().mean().backward();
    for (const auto& parameter : model->parameters()) {
      for (const auto& other : all_gather(group, parameter.grad()))
        EXPECT_TRUE(at::equal(other, parameter.grad()));
    }
  });
}

TEST(DistributedDataParallel, no_sync_accumulates_and_the_next_pass_averages_the_sum) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Plain>(0), shared);
    const auto local = make_module<Plain>(0);
    const auto step = [](auto& module, const at::Tensor& input) {
      module.forward(input).square().mean().backward();
    };
    for (int round = 0; round < 2; ++round) {  // in the second round .grad is a view of the bucket
      for (auto& parameter : model->parameters()) {
        if (round == 1) parameter.mutable_grad().zero_();
      }
      {
        const auto paused = model.no_sync();
        step(model, batch(group.rank(), 4));
      }
      step(model, batch(10 + group.rank(), 4));
      local->zero_grad();
      for (const int seed : {0, 1, 10, 11}) step(*local, batch(seed, 4));
      const auto wanted = local->parameters();
      const auto got = model->parameters();
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::allclose(got[i].grad(), wanted[i].grad() / 2, 1e-4, 1e-6));
      }
    }
  });
}

TEST(DistributedDataParallel, buffers_follow_rank_0) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Net>(0), shared);
    model.forward(batch(group.rank(), 8)).sum().backward();
    model.forward(batch(group.rank(), 8));  // forward() begins with rank 0's statistics
    const auto means = all_gather(group, model.module().norm->running_mean);
    const auto local = make_module<Net>(0);
    local->forward(batch(0, 8));
    local->forward(batch(group.rank(), 8));
    EXPECT_TRUE(at::allclose(means[static_cast<std::size_t>(group.rank())],
                             local->norm->running_mean, 1e-5, 1e-6));
  });
}

// Batch statistics differ between ranks until a forward pass begins with rank 0's. An evaluation
// must begin with them too.
TEST(DistributedDataParallel, evaluation_begins_with_rank_0s_buffers) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Net>(0), shared);
    const auto train = [&](int seed) {
      model->train();
      model.forward(batch(seed + group.rank(), 8)).sum().backward();
    };
    const auto evaluate = [&] {
      const at::NoGradGuard no_grad;
      const auto own = model.module().norm->running_mean.clone();
      model->eval();
      model->forward(batch(0, 1));
      const auto means = all_gather(group, model.module().norm->running_mean);
      EXPECT_TRUE(at::equal(means[0], means[1]));
      if (group.rank() == 0) {
        EXPECT_TRUE(at::equal(means[0], own));
        model.forward(batch(0, 1));  // nothing is communicated, so the other ranks need not call
      }
    };
    train(0);
    evaluate();
    train(2);
    {
      const auto paused = model.no_sync();
      train(4);
    }
    evaluate();
    model->zero_grad();
    train(6);
  });
}

TEST(DistributedDataParallel, every_way_to_call_the_model_begins_with_rank_0s_buffers) {
  using Model = DistributedDataParallel<Net>;
  const std::vector<std::function<void(Model&, const at::Tensor&)>> ways = {
      [](Model& model, const at::Tensor& input) { model.forward(input); },
      [](Model& model, const at::Tensor& input) { model->forward(input); },
      [](Model& model, const at::Tensor& input) { model(input); }};
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    Model model(make_module<Net>(0), shared);
    for (const auto& way : ways) {
      model->train();
      way(model, batch(group.rank(), 8));
      const auto trained = all_gather(group, model.module().norm->running_mean);
      EXPECT_FALSE(at::equal(trained[0], trained[1]));
      const at::NoGradGuard no_grad;
      model->eval();
      way(model, batch(0, 1));
      const auto means = all_gather(group, model.module().norm->running_mean);
      EXPECT_TRUE(at::equal(means[0], means[1]));
    }
  });
}

// Arguments that cannot be copied, arguments that are changed, and optional arguments.
struct Several : torch::nn::Module {
  Several() { layer = register_module("layer", torch::nn::Linear(8, 4)); }
  std::pair<at::Tensor, int> forward(std::unique_ptr<int> offset, int& calls,
                                     const at::Tensor& input, double scale = 2) {
    ++calls;
    return {layer(input) * scale, *offset};
  }
  torch::nn::Linear layer{nullptr};
};

TEST(DistributedDataParallel, forward_takes_any_arguments_and_gives_any_result) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Several>(0), shared);
    int calls = 0;
    const auto [output, offset] = model->forward(std::make_unique<int>(7), calls, batch(0, 4));
    EXPECT_EQ(output.size(0), 4);
    EXPECT_EQ(offset, 7);
    EXPECT_EQ(model(std::make_unique<int>(3), calls, batch(0, 4), 0.5).second, 3);
    EXPECT_EQ(calls, 2);
  });
}

// Rank 1's buffer has the same bytes as rank 0's, with another meaning.
TEST(DistributedDataParallel, buffers_of_another_shape_layout_or_type_are_an_error_on_every_rank) {
  struct WithBuffer : torch::nn::Module {
    explicit WithBuffer(const at::Tensor& buffer) {
      register_parameter("weight", torch::ones({2}));
      register_buffer("kept", buffer);
    }
  };
  const at::Tensor plain = torch::zeros({2, 3, 4, 4});
  for (const at::Tensor& other :
       {plain.contiguous(at::MemoryFormat::ChannelsLast), plain.view({3, 2, 4, 4}),
        plain.transpose(2, 3), torch::zeros({2, 3, 4, 4}, at::kInt)}) {
    const auto results = harness::run_ranks(2, [&](ProcessGroup& group) {
      const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
      const auto module = std::make_shared<WithBuffer>((group.rank() == 0 ? plain : other).clone());
      const DistributedDataParallel model(module, shared);
    });
    for (const auto& result : results) {
      ASSERT_TRUE(result.error.has_value());
      EXPECT_NE(std::string(result.error->what()).find("strides"), std::string::npos)
          << result.error->what();
    }
  }
}

using LossOfWeight = std::function<at::Tensor(const at::Tensor& weight)>;

struct WithWeight : torch::nn::Module {
  explicit WithWeight(const at::Tensor& initial) : weight(register_parameter("weight", initial)) {}
  at::Tensor forward(const LossOfWeight& loss) { return loss(weight); }
  at::Tensor weight;
};

// The same for parameters.
TEST(DistributedDataParallel, parameters_of_another_shape_layout_or_type_are_an_error_everywhere) {
  const at::Tensor plain = torch::zeros({2, 3, 4, 4});
  for (const at::Tensor& other :
       {plain.clone(at::MemoryFormat::ChannelsLast), plain.view({3, 2, 4, 4}).clone(),
        plain.clone().transpose(2, 3), torch::zeros({2, 3, 4, 4}, at::kDouble)}) {
    for (const int odd : {0, 1}) {
      const auto results = harness::run_ranks(2, [&](ProcessGroup& group) {
        const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
        const auto module =
            std::make_shared<WithWeight>((group.rank() == odd ? other : plain).detach().clone());
        const DistributedDataParallel model(module, shared);
      });
      for (const auto& result : results) {
        ASSERT_TRUE(result.error.has_value());
        EXPECT_NE(std::string(result.error->what()).find("strides"), std::string::npos)
            << result.error->what();
      }
    }
  }
}

// On one rank the backward pass produces the gradient in another layout, dense or not.
TEST(DistributedDataParallel, gradients_of_another_layout_on_one_rank_are_averaged_by_elements) {
  const at::Tensor slope = at::arange(12, at::kFloat).view({3, 4});
  const std::vector<LossOfWeight> losses = {
      [&](const at::Tensor& weight) { return (weight * slope).sum(); },
      [&](const at::Tensor& weight) { return (weight.t() * slope.t().contiguous()).sum(); },
      [&](const at::Tensor& weight) { return weight.sum() * 5; },  // an expanded gradient
      [&](const at::Tensor& weight) { return (weight.flip(0).flip(0) * slope).sum(); },
  };
  const std::vector<at::Tensor> gradients = {slope, slope, at::full({3, 4}, 5.0F), slope};
  for (const bool is_transposed : {false, true}) {
    for (std::size_t i = 0; i < losses.size(); ++i) {
      for (const int odd : {0, 1}) {
        run_ranks_ok(2, [&](ProcessGroup& group) {
          const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
          const at::Tensor weight = is_transposed ? at::ones({4, 3}).t() : at::ones({3, 4});
          DistributedDataParallel model(std::make_shared<WithWeight>(weight), shared);
          for (int pass = 0; pass < 2; ++pass) {
            model.forward(group.rank() == odd ? losses[i] : losses[0]).backward();
          }
          // The gradients of both passes were averaged and added.
          EXPECT_TRUE(at::allclose(model->parameters()[0].grad(), gradients[i] + slope))
              << model->parameters()[0].grad();
        });
      }
    }
  }
}

TEST(DistributedDataParallel, is_saved_as_the_module_that_it_wraps) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Net>(0), shared);
    for (const bool by_wrapper : {false, true}) {
      std::stringstream file;
      by_wrapper ? torch::save(model, file) : torch::save(model.module_ptr(), file);
      auto loaded = make_module<Net>(1);
      torch::load(loaded, file);
      const auto got = loaded->named_parameters();
      for (const auto& parameter : model->named_parameters()) {
        EXPECT_TRUE(at::equal(got[parameter.key()], parameter.value())) << parameter.key();
      }
      EXPECT_EQ(loaded->named_buffers().size(), model->named_buffers().size());
    }
  });
}

// torch::load() gives each parameter other memory and another accumulator of its gradient.
TEST(DistributedDataParallel, averages_gradients_after_weights_were_loaded_into_the_module) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    auto module = make_module<Plain>(0);
    DistributedDataParallel model(module, shared);
    std::stringstream file;
    torch::save(module, file);
    for (int pass = 0; pass < 3; ++pass) {
      if (pass == 1) torch::load(module, file);
      module->zero_grad();
      model->forward(batch(10 * group.rank(), 4)).square().sum().backward();
      for (const auto& parameter : module->named_parameters()) {
        const at::Tensor mean = parameter.value().grad().clone();
        all_reduce(group, mean, ReduceOp::kMean);
        EXPECT_TRUE(at::equal(mean, parameter.value().grad())) << pass << " " << parameter.key();
      }
    }
  });
}

TEST(DistributedDataParallel, gradients_of_several_passes_in_a_step_add_up) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    auto module = make_module<Plain>(0);
    DistributedDataParallel model(module, shared);
    const auto pass = [&](int part) {
      model.forward(batch(10 * group.rank() + part, 4)).square().sum().backward();
    };
    const auto gradients = [&] {
      std::vector<at::Tensor> all;
      for (const auto& parameter : module->parameters()) all.push_back(parameter.grad().clone());
      return all;
    };
    pass(0);  // also plans the buckets
    model.zero_grad();
    pass(1);
    pass(2);
    const auto averaged_twice = gradients();
    model.zero_grad();
    {
      const auto guard = model.no_sync();
      pass(1);
    }
    pass(2);
    const auto averaged_once = gradients();
    for (std::size_t i = 0; i < averaged_once.size(); ++i)
      EXPECT_TRUE(at::allclose(averaged_twice[i], averaged_once[i], 1e-5, 1e-6)) << i;
  });
}

TEST(DistributedDataParallel, a_group_or_module_that_is_null_is_an_error) {
  expect_error(ErrorCode::kInvalid, {"DistributedDataParallel: the group is a null pointer"},
               [] { DistributedDataParallel model(make_module<Plain>(0), nullptr); });
  run_ranks_ok(1, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    expect_error(ErrorCode::kInvalid, {"DistributedDataParallel: the module is a null pointer"},
                 [&] { DistributedDataParallel model(std::shared_ptr<Plain>(), shared); });
  });
}

TEST(DistributedDataParallel, a_pass_that_runs_past_the_wrapper_is_an_error_before_any_step) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Plain>(0), shared);
    model.module().forward(batch(0, 4)).sum().backward();
    ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(result.error->what(), Says("module.called_instead"));
  }
}

TEST(DistributedDataParallel, a_rank_may_evaluate_alone) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Net>(0), shared);
    for (int step = 0; step < 3; ++step) {
      model->train();
      model->forward(batch(3 * step + group.rank(), 8)).sum().backward();
      const auto means = all_gather(group, model.module().norm->running_mean);
      EXPECT_TRUE(at::equal(means[0], means[1]) && at::equal(means[0], means[2]));
      if (group.rank() != step) continue;
      const at::NoGradGuard no_grad;
      model->eval();
      model->forward(batch(0, 1));
    }
  });
}

// The parameters that a rank uses decide when its buckets start.
TEST(DistributedDataParallel, buffers_of_several_modules_follow_all_their_gradients) {
  struct Branches : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input) {
      const at::Tensor one = norm(first(input));
      return uses_second ? one + second(input) : one;
    }
    torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 8));
    torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 8));
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
    bool uses_second = true;
  };
  run_ranks_ok(3, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel maker(make_module<Branches>(0), shared, kSmallBuckets);
    DistributedDataParallel critic(make_module<Branches>(1), shared, kSmallBuckets);
    for (int step = 0; step < 6; ++step) {
      maker.module().uses_second = group.rank() != step % 3;
      critic.module().uses_second = group.rank() != (step + 1) % 3;
      critic(maker(batch(3 * step + group.rank(), 8))).sum().backward();
      for (auto* model : {&maker, &critic}) {
        for (const auto& mean : all_gather(group, model->module().norm->running_mean))
          EXPECT_TRUE(at::equal(mean, model->module().norm->running_mean));
      }
    }
  });
}

TEST(DistributedDataParallel,
     a_training_pass_on_one_rank_alone_is_an_error_that_says_what_to_call) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Net>(0), shared);
    model->forward(batch(group.rank(), 8)).sum().backward();
    if (group.rank() == 0) model->forward(batch(0, 8));
    model->forward(batch(group.rank(), 8)).sum().backward();
    ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
  });
  ASSERT_TRUE(results[0].error && results[1].error);
  EXPECT_THAT(results[0].error->what(), Says("module.pass_alone"));
}

TEST(DistributedDataParallel, a_forward_pass_that_the_others_never_make_says_what_to_call) {
  std::promise<void> ended;
  const auto results =
      run_ranks(2,
                [&, waits = ended.get_future().share()](ProcessGroup& group) {
                  const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
                  DistributedDataParallel model(make_module<Net>(0), shared);
                  if (group.rank() == 1) return waits.wait();
                  const std::shared_ptr<void> at_end(nullptr, [&](void*) { ended.set_value(); });
                  model->forward(batch(0, 8));
                  model->forward(batch(0, 8));  // its buffers are broadcast first
                },
                {.group_timeout = std::chrono::seconds(1)});
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kTimeout);
  EXPECT_THAT(results[0].error->what(), Says("module.pass_alone"));
}

TEST(DistributedDataParallel, another_model_is_an_error_that_names_the_first_difference) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(std::make_shared<Net>(group.rank() == 0 ? 32 : 48), shared);
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_NE(std::string(result.error->what()).find("first.weight"), std::string::npos)
        << result.error->what();
    EXPECT_NE(std::string(result.error->what()).find("48"), std::string::npos);
  }
}

TEST(DistributedDataParallel, frozen_parameters_are_shared_but_not_reduced) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    auto module = make_module<Plain>(group.rank());
    module->first->weight.set_requires_grad(false);
    DistributedDataParallel model(module, shared);
    model.forward(batch(group.rank(), 4)).sum().backward();
    EXPECT_FALSE(module->first->weight.grad().defined());
    EXPECT_TRUE(module->first->bias.grad().defined());
    const auto weights = all_gather(group, module->first->weight);
    EXPECT_TRUE(at::equal(weights[0], weights[1]));
    module->second->weight.set_requires_grad(true);
    for (auto& parameter : module->parameters()) parameter.set_requires_grad(false);
    EXPECT_THROW(DistributedDataParallel(module, shared), Error);
  });
}

// A function whose backward pass throws if `fails`.
struct Breaking : torch::autograd::Function<Breaking> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            bool fails) {
    context->saved_data["fails"] = fails;
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (context->saved_data["fails"].toBool()) throw std::runtime_error("broken on purpose");
    return {gradients[0], at::Tensor()};
  }
};

// Two buckets of the same size; a pass that fails never reaches the second one.
struct Fragile : torch::nn::Module {
  Fragile() {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)));
    second =
        register_module("second", torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)));
  }
  at::Tensor forward(const at::Tensor& input, bool fails) {
    return second(Breaking::apply(torch::relu(first(input)), fails));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST(DistributedDataParallel, other_frozen_parameters_are_an_error_that_names_the_first) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    auto module = make_module<Fragile>(0);
    (group.rank() == 0 ? module->first : module->second)->weight.set_requires_grad(false);
    DistributedDataParallel model(module, shared);
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_NE(std::string(result.error->what()).find("first.weight"), std::string::npos)
        << result.error->what();
    EXPECT_NE(std::string(result.error->what()).find("frozen"), std::string::npos)
        << result.error->what();
  }
}

// One weight with two names.
struct Tied : torch::nn::Module {
  Tied() {
    encode = register_parameter("encode", at::full({8, 8}, 0.5));
    register_parameter("decode", encode);
    bias = register_parameter("bias", at::zeros({8}));
  }
  at::Tensor forward(const at::Tensor& input) { return input.mm(encode).mm(encode.t()) + bias; }
  at::Tensor encode, bias;
};

TEST(DistributedDataParallel, a_parameter_with_two_names_is_reduced_once) {
  std::vector<at::Tensor> parts = {batch(0, 4), batch(1, 4)};
  Tied whole;
  whole.forward(at::cat(parts)).square().mean().backward();
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Tied>(0), shared,
                                  {.buckets = {.first_bytes = 1, .cap_bytes = 1}});
    model.forward(parts[static_cast<std::size_t>(group.rank())]).square().mean().backward();
    EXPECT_EQ(model.reducer().num_buckets(), 2u);
    EXPECT_TRUE(at::allclose(model.module().encode.grad(), whole.encode.grad(), 1e-4, 1e-6));
    EXPECT_TRUE(at::allclose(model.module().bias.grad(), whole.bias.grad(), 1e-4, 1e-6));
  });
}

TEST(DistributedDataParallel, channels_last_parameters_keep_their_layout) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    torch::nn::Sequential module(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)));
    for (auto& parameter : module->parameters()) {
      if (parameter.dim() == 4)
        parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
    DistributedDataParallel model(module, shared);
    model.forward(at::ones({2, 3, 6, 6}) * (group.rank() + 1)).sum().backward();
    const auto weight = model->parameters()[0];
    EXPECT_EQ(weight.grad().strides(), weight.strides());
    EXPECT_FLOAT_EQ(weight.grad().flatten()[0].item<float>(), 2 * 16 * 1.5f);
  });
}

TEST(DistributedDataParallel, a_backward_pass_that_failed_everywhere_can_be_followed_by_another) {
  for (const int world : {1, 2}) {
    const auto whole = make_module<Fragile>(0);
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < world; ++rank) parts.push_back(batch(rank, 16));
    whole->forward(at::cat(parts), false).square().mean().backward();
    run_ranks_ok(world, [&](ProcessGroup& group) {
      const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
      DistributedDataParallel model(make_module<Fragile>(0), shared, kSmallBuckets);
      const auto& part = parts[static_cast<std::size_t>(group.rank())];
      for (int round = 0; round < 2; ++round) {
        EXPECT_THROW(model.forward(part, true).square().mean().backward(), std::runtime_error);
        model.forward(part, false).square().mean().backward();
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), whole->parameters()[i].grad(),
                                   1e-4, 1e-6));
        }
        model->zero_grad();
      }
    });
  }
}

TEST(DistributedDataParallel, a_backward_pass_that_failed_on_one_rank_only_is_an_error_on_all) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    const auto shared = std::shared_ptr<ProcessGroup>(&group, [](auto*) {});
    DistributedDataParallel model(make_module<Fragile>(0), shared, kSmallBuckets);
    if (group.rank() == 0) {
      EXPECT_THROW(model.forward(batch(0, 4), true).sum().backward(), std::runtime_error);
    }
    model.forward(batch(0, 4), false).sum().backward();
    ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_TRUE(result.error->code() == ErrorCode::kInvalid ||
                result.error->code() == ErrorCode::kAborted)
        << result.error->what();
  }
  EXPECT_THAT(results[0].error->what(), Says("module.pass_broken_off"));
}

}  // namespace
}  // namespace paceline
