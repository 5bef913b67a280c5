// DistributedDataParallel with logical shards: bitwise equal results for every number of ranks.

#include "paceline/engine/core/logical_shards.h"

#include <functional>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/models/layers.h"
#include "paceline/training/models/resnet.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/activation_checkpoint.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/tensor/random.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;

using ::testing::HasSubstr;

constexpr std::int64_t kShards = 8;
constexpr std::int64_t kSteps = 3;
constexpr std::int64_t kSamples = 3;  // samples of a shard

// Convolution, BatchNorm and dropout; a layer that some shards do not use; a layer that two parts
// under activation_checkpoint() share.
struct Everything : torch::nn::Module {
  Everything() {
    torch::manual_seed(5);
    conv = register_module("conv", torch::nn::Conv2d(2, 6, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    wide = register_module("wide", torch::nn::Linear(96, 700));
    shared = register_module("shared", torch::nn::Linear(700, 700));
    sometimes = register_module("sometimes", torch::nn::Linear(700, 700));
    head = register_module("head", torch::nn::Linear(700, 3));
  }
  at::Tensor forward(const at::Tensor& images, bool uses_all) {
    at::Tensor x = at::relu(norm(conv(images))).flatten(1);
    x = paceline::dropout(at::tanh(wide(x)), 0.3, is_training());
    const auto part = [this](const at::Tensor& y) {
      return paceline::dropout(at::tanh(shared(y)), 0.1, is_training());
    };
    x = activation_checkpoint(part, activation_checkpoint(part, x));
    if (uses_all) x = x + sometimes(x);
    return head(x);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear wide{nullptr}, shared{nullptr}, sometimes{nullptr}, head{nullptr};
};

// One thread at a time: LibTorch's generator belongs to the process.
std::shared_ptr<Everything> make_everything() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return std::make_shared<Everything>();
}

struct Shard {
  at::Tensor images, labels;
};

Shard shard_of(std::int64_t step, std::int64_t shard) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + shard));
  return {at::randn({kSamples, 2, 6, 6}, generator),
          at::randint(0, 3, {kSamples}, generator, at::kLong)};
}

DistributedDataParallelOptions with_shards(std::int64_t shards = kShards) {
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 1000, .cap_bytes = 4000};
  options.logical_shards = shards;
  return options;
}

// The bytes of all parameters and buffers.
std::string bits_of(const torch::nn::Module& module) {
  std::string bits;
  const auto append = [&bits](const at::Tensor& tensor) {
    const at::Tensor dense = tensor.detach().contiguous();
    bits.append(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
  };
  for (const auto& parameter : module.parameters()) append(parameter);
  for (const auto& buffer : module.buffers()) append(buffer);
  return bits;
}

// The bits with which all ranks end, reported by rank 0.
std::string train_on(int world, harness::RanksOptions harness, bool sharded_optimizer) {
  std::string bits;
  at::set_num_threads(1);
  harness.watchdog = std::chrono::minutes(2);
  harness::run_ranks_ok(
      world,
      [&](ProcessGroup& group) {
        at::set_num_threads(1);
        DistributedDataParallel model(make_everything(), borrowed(group), with_shards());
        optim::AdamW optimizer(model->parameters(), {.lr = 0.01, .weight_decay = 0.02});
        if (sharded_optimizer) core_of(optimizer).shard(borrowed(group));
        const auto [first, count] = shards_of(kShards, world, group.rank());
        for (std::int64_t step = 0; step < kSteps; ++step) {
          for (std::int64_t shard = first; shard < first + count; ++shard) {
            seed_rank(seed_of_shard(7, 0, step, shard));
            const auto [images, labels] = shard_of(step, shard);
            model.set_requires_gradient_sync(shard + 1 == first + count);
            const at::Tensor logits = model.forward(images, (step + shard) % 3 == 0);
            torch::nn::functional::cross_entropy(logits, labels).backward();
          }
          optim::clip_grad_norm(optimizer.parameters(), 0.5);
          optimizer.step();
          optimizer.zero_grad();
        }
        if (group.rank() == 0) bits = bits_of(*model.module_ptr());
      },
      harness);
  return bits;
}

TEST(LogicalShards, give_the_same_bits_for_every_number_of_ranks) {
  const std::string bits = train_on(8, {}, false);
  ASSERT_FALSE(bits.empty());
  for (const int world : {1, 2, 4})
    EXPECT_TRUE(train_on(world, {}, false) == bits) << world << " ranks";
  for (const int world : {2, 4})
    EXPECT_TRUE(train_on(world, {}, true) == bits) << world << " ranks, sharded optimizer";
}

TEST(LogicalShards, give_the_same_bits_over_tcp_and_over_several_hosts) {
  const std::string bits = train_on(1, {}, false);
  EXPECT_TRUE(train_on(4, {.transport = TransportKind::kTcp}, false) == bits);
  harness::RanksOptions hosts;
  hosts.adjust = [](int rank, GroupOptions& options) {
    options.link.host = "host" + std::to_string(rank / 2);
  };
  EXPECT_TRUE(train_on(4, hosts, true) == bits);
}

std::string train_resnet_on(int world) {
  std::string bits;
  static std::mutex mutex;
  const auto make = [] {
    const std::lock_guard lock(mutex);
    torch::manual_seed(2);
    return models::ResNet(models::ResNetOptions{.classes = 3, .small_images = true}).ptr();
  };
  harness::run_ranks_ok(
      world,
      [&](ProcessGroup& group) {
        at::set_num_threads(1);
        DistributedDataParallelOptions options;
        options.logical_shards = 8;
        DistributedDataParallel model(make(), borrowed(group), options);
        optim::SGD optimizer(model->parameters(), {.lr = 0.01, .momentum = 0.9});
        const auto [first, count] = shards_of(8, world, group.rank());
        for (std::int64_t step = 0; step < 2; ++step) {
          for (std::int64_t shard = first; shard < first + count; ++shard) {
            auto generator =
                at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + shard));
            model.set_requires_gradient_sync(shard + 1 == first + count);
            const at::Tensor logits = model.forward(at::randn({2, 3, 8, 8}, generator));
            const at::Tensor labels = at::randint(0, 3, {2}, generator, at::kLong);
            torch::nn::functional::cross_entropy(logits, labels).backward();
          }
          optimizer.step();
          optimizer.zero_grad();
        }
        if (group.rank() == 0) bits = bits_of(*model.module_ptr());
      },
      {.watchdog = std::chrono::minutes(3)});
  return bits;
}

TEST(LogicalShards, give_a_resnet_18_the_same_bits_for_every_number_of_ranks) {
  const std::string bits = train_resnet_on(8);
  EXPECT_GT(bits.size(), 44'000'000U);
  for (const int world : {1, 4}) EXPECT_TRUE(train_resnet_on(world) == bits) << world;
}

// The result is the mean of all shards' gradients, without gradients of the previous step.
TEST(LogicalShards, average_the_gradients_of_all_shards) {
  const auto gradients_of = [](Everything& net, std::int64_t shard) {
    const auto [images, labels] = shard_of(0, shard);
    torch::nn::functional::cross_entropy(net.forward(images, true), labels).backward();
  };
  Everything whole;
  whole.eval();
  for (std::int64_t shard = 0; shard < kShards; ++shard) gradients_of(whole, shard);
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(make_everything(), borrowed(group), with_shards());
    model->eval();
    for (int round = 0; round < 2; ++round) {
      const auto [first, count] = shards_of(kShards, 2, group.rank());
      for (std::int64_t shard = first; shard < first + count; ++shard) {
        const auto [images, labels] = shard_of(0, shard);
        model.set_requires_gradient_sync(shard + 1 == first + count);
        torch::nn::functional::cross_entropy(model.forward(images, true), labels).backward();
      }
      for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
        EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), whole.parameters()[i].grad() / 8,
                                 1e-3, 1e-5))
            << i;
      }
      model.zero_grad();
    }
  });
}

// The averaged gradients of a pass are used, dropped or an error, never lost.
TEST(LogicalShards, do_not_lose_gradients_that_nothing_has_used) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    for (const bool divides : {false, true}) {
      auto net = make_everything();
      net->eval();
      optim::SGD optimizer(net->parameters(), {.lr = 0.1});
      auto model = divides ? fully_shard(net, borrowed(group), optimizer,
                                         {.stage = 2, .data_parallel = with_shards(2)})
                           : DistributedDataParallel(net, borrowed(group), with_shards(2));
      const auto pass = [&] {
        const Shard shard = shard_of(0, group.rank());
        torch::nn::functional::cross_entropy(model.forward(shard.images, true), shard.labels)
            .backward();
      };
      pass();
      expect_error(ErrorCode::kInvalid,
                   {"would drop the averaged gradients of the last backward pass"}, pass);
      optimizer.zero_grad();
      pass();
      optimizer.step();
      pass();  // zero_grad() may follow the forward pass
    }
  });
}

// As a GAN's discriminator does: a step with two losses and one backward pass for their sum.
TEST(LogicalShards, average_the_gradients_of_two_losses_of_a_pass) {
  const auto backward = [](auto& net, std::int64_t shard) {
    const auto loss_of = [&](std::int64_t step) {
      const auto [images, labels] = shard_of(step, shard);
      return torch::nn::functional::cross_entropy(net.forward(images, true), labels);
    };
    const at::Tensor first = loss_of(0);
    (first + loss_of(1)).backward();
  };
  Everything whole;
  whole.eval();
  for (std::int64_t shard = 0; shard < 2; ++shard) backward(whole, shard);
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(make_everything(), borrowed(group), with_shards(2));
    model->eval();
    backward(model, group.rank());
    for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
      EXPECT_TRUE(
          at::allclose(model->parameters()[i].grad(), whole.parameters()[i].grad() / 2, 1e-3, 1e-5))
          << i;
    }
  });
}

// The last bucket of a step carries information that must not be applied to the next step. The test
// has a second module, and a parameter that is used only in the first step.
TEST(LogicalShards, say_nothing_of_the_step_before) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    DistributedDataParallel first(make_everything(), borrowed(group), with_shards());
    DistributedDataParallel model(make_everything(), borrowed(group), with_shards());
    const auto [begin, count] = shards_of(kShards, 2, group.rank());
    for (int step = 0; step < 3; ++step) {
      for (std::int64_t shard = begin; shard < begin + count; ++shard) {
        model.set_requires_gradient_sync(shard + 1 == begin + count);
        model.forward(shard_of(step, shard).images, step == 0).square().sum().backward();
      }
      EXPECT_EQ(model.module().sometimes->weight.grad().defined(), step == 0) << step;
      model.zero_grad();
    }
  });
}

// Sums of 16-bit gradients are rounded once for any number of ranks.
TEST(LogicalShards, round_16_bit_gradients_once) {
  const auto gradient_on = [](int world) {
    std::string bits;
    harness::run_ranks_ok(world, [&](ProcessGroup& group) {
      struct Scale : torch::nn::Module {
        Scale() { scale = register_parameter("scale", at::ones({500}, at::kBFloat16)); }
        at::Tensor forward(const at::Tensor& x) { return (scale * x).sum(); }
        at::Tensor scale;
      };
      DistributedDataParallel model(std::make_shared<Scale>(), borrowed(group), with_shards());
      const auto [first, count] = shards_of(kShards, world, group.rank());
      for (std::int64_t shard = first; shard < first + count; ++shard) {
        auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(shard));
        model.set_requires_gradient_sync(shard + 1 == first + count);
        model.forward(at::randn({500}, generator).to(at::kBFloat16)).backward();
      }
      const at::Tensor& gradient = model.module().scale.grad();
      if (group.rank() == 0)
        bits.assign(static_cast<const char*>(gradient.data_ptr()), gradient.nbytes());
    });
    return bits;
  };
  const std::string bits = gradient_on(8);
  for (const int world : {1, 2, 4}) EXPECT_TRUE(gradient_on(world) == bits) << world << " ranks";
}

TEST(LogicalShards, round_16_bit_gradients_in_every_stage_of_sharding) {
  struct Scale : torch::nn::Module {
    Scale() { scale = register_parameter("scale", at::ones({500}, at::kBFloat16)); }
    at::Tensor forward(const at::Tensor& x) { return (scale * x).sum(); }
    at::Tensor scale;
  };
  const auto weights_of = [](int world, int stage) {
    std::string bits;
    harness::run_ranks_ok(world, [&](ProcessGroup& group) {
      auto net = std::make_shared<Scale>();
      optim::SGD optimizer(net->parameters(), {.lr = 0.01});
      auto model = fully_shard(net, borrowed(group), optimizer,
                               {.stage = stage, .data_parallel = with_shards()});
      const auto [first, count] = shards_of(kShards, world, group.rank());
      for (std::int64_t step = 0; step < 40; ++step) {
        for (std::int64_t shard = first; shard < first + count; ++shard) {
          const auto seed = static_cast<std::uint64_t>(kShards * step + shard);
          auto generator = at::detail::createCPUGenerator(seed);
          model.set_requires_gradient_sync(shard + 1 == first + count);
          model.forward(at::randn({500}, generator).to(at::kBFloat16)).backward();
        }
        optimizer.step();
        optimizer.zero_grad();
      }
      if (group.rank() == 0) bits = bits_of(*net);
    });
    return bits;
  };
  const std::string bits = weights_of(1, 1);
  for (const int world : {2, 4}) {
    for (const int stage : {1, 2, 3})
      EXPECT_TRUE(weights_of(world, stage) == bits) << world << " ranks, stage " << stage;
  }
}

void expect_refused(int world, const std::function<void(ProcessGroup&)>& body, ErrorCode code,
                    const std::string& text) {
  for (const auto& result : harness::run_ranks(world, body)) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), HasSubstr(text));
    EXPECT_EQ(result.error->code(), code);
  }
}

TEST(LogicalShards, that_do_not_fit_the_ranks_are_refused_with_the_numbers_that_do) {
  expect_refused(
      3,
      [](ProcessGroup& group) {
        DistributedDataParallel model(make_everything(), borrowed(group), with_shards());
      },
      ErrorCode::kInvalid,
      "among 3 ranks with bit-identical results: each rank must have 1, 2, 4, 8, ... of "
      "them. Start 1, 2, 4 or 8 ranks");
}

TEST(LogicalShards, of_another_number_on_one_rank_are_refused_on_all) {
  expect_refused(
      2,
      [](ProcessGroup& group) {
        DistributedDataParallel model(make_everything(), borrowed(group),
                                      with_shards(group.rank() == 0 ? 8 : 4));
      },
      ErrorCode::kInvalid, "8 logical shards");
}

TEST(LogicalShards, need_the_loop_to_say_where_a_step_ends) {
  expect_refused(
      2,
      [](ProcessGroup& group) {
        DistributedDataParallel model(make_everything(), borrowed(group), with_shards());
        model.forward(shard_of(0, 0).images, true).sum().backward();
      },
      ErrorCode::kInvalid, "this is pass 1 of a step, and it averages");
}

TEST(LogicalShards, do_not_go_with_a_hook) {
  struct Mean : CommunicationHook {
    std::string name() const override { return "mean"; }
    WorkPtr start_round(ProcessGroup&, const GradientBucket&, int) override { return nullptr; }
  };
  expect_refused(
      2,
      [](ProcessGroup& group) {
        DistributedDataParallel model(make_everything(), borrowed(group), with_shards());
        model.register_comm_hook(std::make_shared<Mean>());
      },
      ErrorCode::kInvalid, "communication hook mean: with logical shards");
}

// An exception in the middle of a step on every rank does not affect the next step.
TEST(LogicalShards, of_a_step_that_failed_are_forgotten) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    DistributedDataParallel model(make_everything(), borrowed(group), with_shards(4));
    model->eval();
    const auto pass = [&](std::int64_t shard, bool is_last) {
      const auto [images, labels] = shard_of(0, shard);
      model.set_requires_gradient_sync(is_last);
      torch::nn::functional::cross_entropy(model.forward(images, true), labels).backward();
    };
    const auto [first, count] = shards_of(4, 2, group.rank());
    pass(first, false);
    pass(first + 1, true);
    const at::Tensor wanted = model.module().head->weight.grad().clone();
    model.zero_grad();
    pass(first, false);
    bool failing = true;
    model.module().conv->weight.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
      if (failing) throw std::runtime_error("broken");
      return gradient;
    });
    EXPECT_THROW(pass(first + 1, true), std::runtime_error);
    failing = false;
    pass(first, false);
    pass(first + 1, true);
    EXPECT_TRUE(at::equal(model.module().head->weight.grad(), wanted));
  });
}

}  // namespace
}  // namespace paceline
