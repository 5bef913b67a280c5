// A step divided among ranks against the same step taken by one: the bits must be the same.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/core/error.h"
#include "paceline/optim/adam.h"
#include "paceline/optim/sgd.h"

#include "tests/harness/thread_ranks.h"

namespace paceline::optim {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

// One large, one smaller than a cache line, one in another memory format.
std::vector<at::Tensor> make_odd_parameters() {
  std::vector<at::Tensor> parameters = {random({371, 53}, 1), random({3}, 2),
                                        random({4, 3, 3, 3}, 3)};
  parameters[2] = parameters[2].contiguous(at::MemoryFormat::ChannelsLast);
  for (auto& parameter : parameters) parameter.set_requires_grad(true);
  return parameters;
}

void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = random(parameters[i].sizes(), 100 * (step + 1) + i);
}

void take_steps(Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    set_gradients(optimizer.parameters(), step);
    optimizer.step();
  }
}

std::unique_ptr<Optimizer> make(const std::string& name) {
  if (name == "adam")
    return std::make_unique<Adam>(make_odd_parameters(),
                                  AdamOptions{.lr = 1e-2, .weight_decay = 5e-3});
  if (name == "adamw")
    return std::make_unique<AdamW>(make_odd_parameters(), AdamOptions{.lr = 1e-2});
  return std::make_unique<Sgd>(make_odd_parameters(), SgdOptions{.lr = 0.05, .momentum = 0.9});
}

std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i], b[i])) << "parameter " << i;
    EXPECT_EQ(a[i].strides(), b[i].strides()) << "parameter " << i;
  }
}

TEST(ShardedOptimizer, takes_the_steps_of_a_single_one_bit_for_bit) {
  for (const std::string name : {"adam", "adamw", "sgd"}) {
    const auto single = make(name);
    take_steps(*single, 0, 6);
    for (const int world : {1, 2, 3, 5}) {
      run_ranks_ok(world, [&](ProcessGroup& group) {
        const auto sharded = make(name);
        sharded->shard(borrowed(group));
        take_steps(*sharded, 0, 6);
        expect_same_bits(sharded->parameters(), single->parameters());
      });
    }
  }
}

TEST(ShardedOptimizer, a_rank_keeps_its_part_of_the_state) {
  const std::size_t whole = make("adam")->num_state_bytes();
  run_ranks_ok(4, [&](ProcessGroup& group) {
    const auto sharded = make("adam");
    sharded->shard(borrowed(group));
    EXPECT_LE(sharded->num_state_bytes(), whole / 4 + 1024);
    EXPECT_GE(sharded->num_state_bytes() * 4, whole);
  });
}

TEST(ShardedOptimizer, its_state_moves_between_any_numbers_of_ranks) {
  const auto straight = make("adam");
  take_steps(*straight, 0, 3);
  std::vector<at::Tensor> parameters;
  NamedTensors state;
  run_ranks_ok(3, [&](ProcessGroup& group) {
    const auto sharded = make("adam");
    sharded->shard(borrowed(group));
    take_steps(*sharded, 0, 3);
    const auto all = sharded->state();
    if (group.rank() != 0) return;
    for (const auto& [name, tensor] : all) state.emplace_back(name, tensor.clone());
    for (const auto& parameter : sharded->parameters())
      parameters.push_back(parameter.detach().clone());
  });
  take_steps(*straight, 3, 6);
  for (const int world : {1, 2, 4}) {
    run_ranks_ok(world, [&](ProcessGroup& group) {
      const auto resumed = make("adam");
      resumed->shard(borrowed(group));
      {
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < parameters.size(); ++i)
          resumed->parameters()[i].copy_(parameters[i]);
      }
      resumed->set_state(state);
      take_steps(*resumed, 3, 6);
      expect_same_bits(resumed->parameters(), straight->parameters());
    });
  }
}

TEST(ShardedOptimizer, a_parameter_that_is_given_twice_moves_once) {
  const auto tied = [] {
    auto parameters = make_odd_parameters();
    parameters.insert(parameters.begin() + 1, parameters[0]);
    return std::make_unique<Adam>(parameters, AdamOptions{.lr = 1e-2});
  };
  const auto alone = tied();
  EXPECT_EQ(alone->parameters().size(), 3u);
  take_steps(*alone, 0, 3);
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto sharded = tied();
    sharded->shard(borrowed(group));
    take_steps(*sharded, 0, 3);
    expect_same_bits(sharded->parameters(), alone->parameters());
  });
}

TEST(ShardedOptimizer, is_sharded_once_before_the_first_step) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto twice = make("sgd");
    twice->shard(borrowed(group));
    EXPECT_THROW(twice->shard(borrowed(group)), Error);
    const auto late = make("sgd");
    take_steps(*late, 0, 1);
    EXPECT_THROW(late->shard(borrowed(group)), Error);
  });
}

TEST(ShardedOptimizer, state_of_another_optimizer_is_refused) {
  const auto adam = make("adam");
  EXPECT_THROW(adam->set_state(make("sgd")->state()), Error);
}

}  // namespace
}  // namespace paceline::optim
