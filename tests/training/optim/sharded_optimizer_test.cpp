// Compares a step divided among ranks with the same step on one rank: bitwise equal.

#include <array>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/harness/thread_ranks.h"
#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;

constexpr std::array<const char*, 8> kAll = {"adam",        "adamw",       "sgd",  "lamb",
                                             "adam groups", "lars groups", "bf16", "mixed lamb"};

std::unique_ptr<Optimizer> make(const std::string& name) {
  if (name == "adam")
    return std::make_unique<Adam>(make_odd_parameters(),
                                  AdamOptions{.lr = 1e-2, .weight_decay = 5e-3});
  if (name == "adamw")
    return std::make_unique<AdamW>(make_odd_parameters(), AdamWOptions{.lr = 1e-2});
  if (name == "lamb")
    return std::make_unique<LAMB>(make_odd_parameters(),
                                  LAMBOptions{.lr = 1e-2, .weight_decay = 1e-2});
  if (name == "bf16")
    return std::make_unique<Adam>(
        make_odd_parameters({at::kBFloat16, at::kBFloat16, at::kBFloat16}),
        AdamOptions{.lr = 1e-2});
  if (name == "mixed lamb")
    return std::make_unique<LAMB>(make_odd_parameters({at::kHalf, at::kFloat, at::kBFloat16}),
                                  LAMBOptions{.lr = 1e-2});
  const auto all = make_odd_parameters();
  const std::vector<at::Tensor> matrices = {all[0], all[2]};
  if (name == "adam groups")
    return std::make_unique<Adam>(
        std::vector<ParameterGroup<AdamOptions>>{{matrices, {.lr = 1e-2, .weight_decay = 1e-2}},
                                                 {{all[1]}, {.lr = 1e-1, .betas = {0.5, 0.999}}}});
  if (name == "lars groups")
    return std::make_unique<LARS>(std::vector<ParameterGroup<LARSOptions>>{
        {matrices, {.lr = 10, .weight_decay = 1e-4}}, {{all[1]}, {.lr = 0.1, .adapt = false}}});
  return std::make_unique<SGD>(make_odd_parameters(), SGDOptions{.lr = 0.05, .momentum = 0.9});
}

TEST(ShardedOptimizer, takes_the_steps_of_a_single_one_bit_for_bit) {
  for (const std::string name : kAll) {
    SCOPED_TRACE(name);
    const auto single = make(name);
    take_steps(*single, 0, 6);
    for (const int world : {1, 2, 3, 4, 8}) {
      run_ranks_ok(world, [&](ProcessGroup& group) {
        for (const bool node_shared : {false, true}) {
          const auto sharded = make(name);
          core_of(*sharded).shard(borrowed(group), {.node_shared = node_shared});
          take_steps(*sharded, 0, 6);
          expect_same_bits(sharded->parameters(), single->parameters());
        }
      });
    }
  }
}

// Parameters of more than 65,536 elements have larger blocks.
TEST(ShardedOptimizer, norms_of_large_parameters_have_the_same_bits_too) {
  const auto large = [] {
    std::vector<at::Tensor> parameters = {random({77}, 1), random({700, 131}, 2), random({5}, 3)};
    for (auto& parameter : parameters) parameter.set_requires_grad(true);
    return std::make_unique<LAMB>(parameters, LAMBOptions{.lr = 1e-2, .weight_decay = 0.1});
  };
  const auto single = large();
  take_steps(*single, 0, 3);
  for (const int world : {2, 3, 4}) {
    run_ranks_ok(world, [&](ProcessGroup& group) {
      for (const bool node_shared : {false, true}) {
        const auto sharded = large();
        core_of(*sharded).shard(borrowed(group), {.node_shared = node_shared});
        take_steps(*sharded, 0, 3);
        expect_same_bits(sharded->parameters(), single->parameters());
      }
    });
  }
}

TEST(ShardedOptimizer, a_rank_keeps_its_part_of_the_state) {
  const std::size_t whole = make("adam")->num_state_bytes();
  run_ranks_ok(4, [&](ProcessGroup& group) {
    const auto sharded = make("adam");
    core_of(*sharded).shard(borrowed(group));
    EXPECT_LE(sharded->num_state_bytes(), whole / 4 + 1024);
    EXPECT_GE(sharded->num_state_bytes() * 4, whole);
  });
}

TEST(ShardedOptimizer, its_state_moves_between_any_numbers_of_ranks) {
  for (const std::string name : {"adam", "lars groups", "mixed lamb"}) {
    SCOPED_TRACE(name);
    const auto straight = make(name);
    take_steps(*straight, 0, 3);
    std::vector<at::Tensor> parameters;
    NamedTensors state;
    run_ranks_ok(3, [&](ProcessGroup& group) {
      const auto sharded = make(name);
      core_of(*sharded).shard(borrowed(group));
      take_steps(*sharded, 0, 3);
      const auto all = sharded->state();
      if (group.rank() != 0) return;
      state = copies(all);
      parameters = copies(sharded->parameters());
    });
    take_steps(*straight, 3, 6);
    for (const int world : {1, 2, 4}) {
      run_ranks_ok(world, [&](ProcessGroup& group) {
        for (const bool node_shared : {false, true}) {
          const auto resumed = make(name);
          core_of(*resumed).shard(borrowed(group), {.node_shared = node_shared});
          {
            const auto writing = resumed->writable_parameters();
            assign(resumed->parameters(), parameters);
          }
          resumed->set_state(state);
          take_steps(*resumed, 3, 6);
          expect_same_bits(resumed->parameters(), straight->parameters());
        }
      });
    }
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
    core_of(*sharded).shard(borrowed(group));
    take_steps(*sharded, 0, 3);
    expect_same_bits(sharded->parameters(), alone->parameters());
  });
}

TEST(ShardedOptimizer, is_sharded_once_before_the_first_step) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto twice = make("sgd");
    core_of(*twice).shard(borrowed(group));
    EXPECT_THROW(core_of(*twice).shard(borrowed(group)), Error);
    const auto late = make("sgd");
    take_steps(*late, 0, 1);
    EXPECT_THROW(core_of(*late).shard(borrowed(group)), Error);
  });
}

TEST(ShardedOptimizer, state_of_another_optimizer_is_refused) {
  const auto adam = make("adam");
  EXPECT_THROW(adam->set_state(make("sgd")->state()), Error);
}

}  // namespace
}  // namespace paceline::optim
