// The process-wide state for divided parameters and gradients, and how long it lasts.

#include "paceline/training/optim/parameters/divided_parameters.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/harness/thread_ranks.h"
#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

std::unique_ptr<Adam> divided_adam(ProcessGroup& group) {
  auto adam = std::make_unique<Adam>(make_odd_parameters(), AdamOptions{});
  core_of(*adam).shard(borrowed(group),
                       {.node_shared = true, .unit_bytes = 1024, .shard_across_hosts = true});
  return adam;
}

harness::RanksOptions each_on_a_host() {
  return {.adjust = [](int rank, GroupOptions& group) {
    group.link.host = "h" + std::to_string(rank);
  }};
}

// The callback makes every operation of the process box its inputs, so it may exist only while a
// model is divided.
TEST(DividedParameters, operations_are_watched_while_a_model_is_divided) {
  const auto compute = [] { return (at::ones({2}) + 1).sum(); };
  for (int round = 0; round < 2; ++round) {
    compute();
    ASSERT_FALSE(at::hasGlobalCallbacks());
    harness::run_ranks_ok(
        2,
        [&](ProcessGroup& group) {
          auto first = divided_adam(group);
          const auto second = divided_adam(group);
          first.reset();
          group.barrier();
          compute();
          EXPECT_TRUE(at::hasGlobalCallbacks());
          EXPECT_TRUE(at::equal(second->parameters()[0], make_odd_parameters()[0]));
          group.barrier();
        },
        each_on_a_host());
    compute();
    EXPECT_FALSE(at::hasGlobalCallbacks());
  }
}

TEST(DividedParameters, a_gradient_is_divided_while_the_optimizer_lives) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    auto parameters = make_odd_parameters();
    parameters[1].set_requires_grad(false);
    auto adam = std::make_unique<Adam>(parameters, AdamOptions{});
    EXPECT_FALSE(is_gradient_divided(parameters[0]));
    core_of(*adam).shard(borrowed(group), {.unit_bytes = 1024});
    for (const auto& parameter : parameters) EXPECT_TRUE(is_gradient_divided(parameter));
    EXPECT_THROW(parameters[0].grad(), Error);
    EXPECT_FALSE(parameters[1].grad().defined());
    adam.reset();
    for (const auto& parameter : parameters) EXPECT_FALSE(is_gradient_divided(parameter));
    EXPECT_FALSE(parameters[0].grad().defined());
  });
}

}  // namespace
}  // namespace paceline::optim
