// The state of a communication hook can be restored: in another replica, as after a restart, and
// after buckets have been planned again.

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/gradient_placement.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/training_step.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;
using MakeHook = std::function<std::shared_ptr<CommunicationHook>()>;

// Two matrices and a vector; their gradients are made up from the rank and the step.
struct Three : torch::nn::Module {
  Three() {
    first = register_parameter("first", at::zeros({20, 12}));
    second = register_parameter("second", at::zeros({8, 30}));
    bias = register_parameter("bias", at::zeros({20}));
  }
  // The order of the additions decides the order of the gradients.
  at::Tensor forward(int rank, int step, bool reversed) {
    const auto of = [&](const at::Tensor& parameter, int number) {
      auto generator = at::detail::createCPUGenerator(
          static_cast<std::uint64_t>(1000 * number + 10 * step + rank));
      return (parameter * at::randn(parameter.sizes(), generator)).sum();
    };
    return reversed ? (of(bias, 3) + of(second, 2)) + of(first, 1)
                    : (of(first, 1) + of(second, 2)) + of(bias, 3);
  }
  at::Tensor first, second, bias;
};

struct HookedReplica {
  HookedReplica(ProcessGroup& group, const MakeHook& make_hook)
      : rank(group.rank()), model(std::make_shared<Three>(), borrowed(group), options()) {
    model.register_comm_hook(make_hook());
  }
  static DistributedDataParallelOptions options() {
    DistributedDataParallelOptions options;
    options.buckets = {.first_bytes = 500, .cap_bytes = 1000};  // several buckets
    return options;
  }
  // All averaged gradients of a pass, in one row.
  at::Tensor pass(int step, bool reversed = false) {
    model->zero_grad();
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    model.forward(rank, step, reversed).backward();
    std::vector<at::Tensor> parts;
    for (const auto& parameter : model->parameters()) {
      if (parameter.grad().defined()) parts.push_back(parameter.grad().flatten().clone());
    }
    return at::cat(parts);
  }
  HookState copy_of_state() {
    HookState state = model.reducer().hook_state();
    for (auto* tensors : {&state.shared, &state.owed}) {
      for (auto& [name, tensor] : *tensors) tensor = tensor.clone();
    }
    return state;
  }

  const int rank;
  DistributedDataParallel<Three> model;
};

const std::vector<MakeHook> kHooks = {
    [] { return std::make_shared<PowerSGDHook>(PowerSGDOptions{.rank = 2, .start_step = 2}); },
    [] {
      return std::make_shared<PowerSGDHook>(
          PowerSGDOptions{.rank = 1, .start_step = 0, .warm_start = false});
    },
    [] {
      return std::make_shared<PowerSGDHook>(
          PowerSGDOptions{.rank = 3, .start_step = 1, .use_error_feedback = false});
    },
    [] { return std::make_shared<TopKHook>(0.05); },
    [] { return std::make_shared<CompressHook>(at::kBFloat16); }};

TEST(HookState, of_a_pass_that_failed_on_every_rank_is_not_taken_for_damage) {
  for (const auto& make_hook : kHooks) {
    run_ranks_ok(2, [&](ProcessGroup& group) {
      HookedReplica replica(group, make_hook);
      for (int step = 0; step < 4; ++step) replica.pass(step);
      // The gradient that comes last fails, when the buckets of the others have started.
      at::Tensor last = replica.model->parameters().front();
      const auto hook = last.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("the pass fails"); });
      EXPECT_THROW(replica.pass(4), std::runtime_error);
      last.remove_hook(hook);
      for (int step = 5; step < 7; ++step) replica.pass(step);
    });
  }
}

// The first pass after the restore may have its gradients in another order.
TEST(HookState, makes_another_replica_go_on_with_the_same_bits) {
  for (const int world : {2, 3, 5}) {
    for (const auto& make_hook : kHooks) {
      run_ranks_ok(world, [&](ProcessGroup& group) {
        HookedReplica straight(group, make_hook);
        for (int step = 0; step < 4; ++step) straight.pass(step);
        HookedReplica resumed(group, make_hook);
        resumed.model.reducer().set_hook_state(straight.copy_of_state());
        for (int step = 4; step < 8; ++step) {
          EXPECT_TRUE(at::equal(resumed.pass(step, step == 4), straight.pass(step)))
              << step << " " << make_hook()->name();
        }
      });
    }
  }
}

TEST(HookState, has_what_is_owed_and_shared_by_parameter) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    HookedReplica replica(group, kHooks[0]);
    EXPECT_TRUE(replica.model.reducer().hook_state().owed.empty());
    for (int step = 0; step < 4; ++step) replica.pass(step);
    const HookState state = replica.model.reducer().hook_state();
    std::vector<std::string> owed, shared;
    for (const auto& [name, tensor] : state.owed) owed.push_back(name);
    for (const auto& [name, tensor] : state.shared) {
      shared.push_back(name);
      const at::Tensor other = tensor.clone();
      broadcast(group, other, 0);
      EXPECT_TRUE(at::equal(other, tensor)) << name;
    }
    EXPECT_THAT(owed, ::testing::UnorderedElementsAre("error.first", "error.second", "error.bias"));
    EXPECT_THAT(shared, ::testing::UnorderedElementsAre("factor.first", "factor.second"));
    EXPECT_EQ(state.words.at("num_steps"), "4");
  });
}

// A state that was set and not used yet can be read again.
TEST(HookState, waits_for_the_first_pass) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    HookedReplica replica(group, kHooks[3]);
    replica.pass(0);
    const HookState state = replica.copy_of_state();
    HookedReplica other(group, kHooks[3]);
    other.model.reducer().set_hook_state(state);
    const HookState again = other.model.reducer().hook_state();
    EXPECT_EQ(again.words, state.words);
    ASSERT_EQ(again.owed.size(), 3u);
    for (std::size_t i = 0; i < again.owed.size(); ++i)
      EXPECT_TRUE(at::equal(again.owed[i].second, state.owed[i].second));
  });
}

TEST(HookState, of_other_parameters_stays_when_one_is_frozen) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    HookedReplica replica(group, kHooks[3]);
    for (int step = 0; step < 3; ++step) replica.pass(step);
    const auto error_of = [&](const std::string& name) {
      for (const auto& [entry, tensor] : replica.copy_of_state().owed) {
        if (entry == "error." + name) return tensor;
      }
      return at::Tensor();
    };
    replica.model.module().second.requires_grad_(false);
    const at::Tensor before = error_of("first");
    EXPECT_GT(before.abs().max().item<float>(), 0);
    replica.model.forward(replica.rank, 3, false);  // now the buckets must be planned again
    EXPECT_TRUE(at::equal(error_of("first"), before));
    replica.pass(3);
    EXPECT_FALSE(error_of("second").defined());
    EXPECT_TRUE(error_of("first").defined());
    EXPECT_FALSE(at::equal(error_of("first"), before));
  });
}

TEST(HookState, of_another_hook_is_an_error_that_shows_both) {
  for (const auto& result : run_ranks(2, [](ProcessGroup& group) {
         HookedReplica replica(group, kHooks[3]);
         HookState state;
         state.words = {{"name", "top_k (0.5)"}};
         replica.model.reducer().set_hook_state(state);
       })) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(result.error->what(),
                Says("saved_state.differs", "name", "top_k (0.05)", "top_k (0.5)"));
  }
}

}  // namespace
}  // namespace paceline
