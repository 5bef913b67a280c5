#include "paceline/planning/forecast/memory_plan.h"

#include <gtest/gtest.h>

#include "tests/planning/forecast/small_job.h"

namespace paceline::planning {
namespace {

// 1,000,000 parameters of 16 bytes each if nothing is divided.
JobProfile million() {
  JobProfile profile;
  profile.layers = {{.name = "all", .parameters = 1'000'000, .activation_bytes = 1000}};
  profile.unit_bytes = 1000;
  profile.shard_stages = {0, 1, 2, 3};
  profile.process_bytes = 50;
  profile.library_bytes = 7;
  profile.working_bytes = 10;
  return profile;
}

MemoryPlan plan(const Way& way, const Machine& machine) {
  return plan_memory(million(), machine, way, 3, {{{0, 1}}}, {3000});
}

TEST(MemoryPlan, in_the_stages_of_zero) {
  const Machine machine{.ranks_per_host = 4};
  const double p = 1e6, rest = 3000 + 30 + 50, units = 4000;
  // The formulas of fully_shard.h: 16 P, 8 P + 8 P / W, 4 P + 12 P / W, and 12 P / W with 4 P once
  // per host.
  EXPECT_DOUBLE_EQ(plan({.replicas = 4}, machine).rank.all(), 16 * p + rest);
  EXPECT_DOUBLE_EQ(plan({.replicas = 4, .shard_stage = 1}, machine).rank.all(),
                   8 * p + 8 * p / 4 + rest);
  EXPECT_DOUBLE_EQ(plan({.replicas = 4, .shard_stage = 2}, machine).rank.all(),
                   4 * p + 12 * p / 4 + units + rest);
  const MemoryPlan third = plan({.replicas = 4, .shard_stage = 3}, machine);
  EXPECT_DOUBLE_EQ(third.rank.all(), 12 * p / 4 + units + rest);
  EXPECT_DOUBLE_EQ(third.host_copy, 4 * p + 7);
  EXPECT_DOUBLE_EQ(third.host, 4 * third.rank.all() + 4 * p + 7);
}

TEST(MemoryPlan, over_hosts_each_has_a_copy) {
  const Machine machine{.hosts = 2, .ranks_per_host = 2};
  const MemoryPlan plan_of_two = plan({.replicas = 4, .shard_stage = 3}, machine);
  EXPECT_DOUBLE_EQ(plan_of_two.host_copy, 4e6 + 7);
  EXPECT_DOUBLE_EQ(plan_of_two.host, 2 * plan_of_two.rank.all() + 4e6 + 7);
}

TEST(MemoryPlan, fits_or_not) {
  Machine machine{.ranks_per_host = 1, .memory_bytes = 17e6};
  EXPECT_TRUE(plan({}, machine).fits(machine));
  machine.memory_bytes = 15e6;
  EXPECT_FALSE(plan({}, machine).fits(machine));
  machine.memory_bytes = 0;  // unknown
  EXPECT_TRUE(plan({}, machine).fits(machine));
}

TEST(MemoryPlan, parts_and_stages_divide_parameters) {
  JobProfile profile = divisible_job(4, 2);
  profile.layers.front().divisible.parameters = 0.5;
  // Stage 0 of two: 1000 x (1/2 + 1/4) + 500; stage 1: 500 + 500.
  const Way way{.parts = 2, .stages = 2};
  EXPECT_DOUBLE_EQ(parameters_of_rank(profile, way, {{0, 2}}), 1250);
  EXPECT_DOUBLE_EQ(parameters_of_rank(profile, way, {{2, 4}}), 1000);
  EXPECT_DOUBLE_EQ(activations_of_stage(profile, way, {2, 4}), 100);
}

TEST(MemoryPlan, the_last_stage_has_a_copy_of_tied_weights) {
  JobProfile profile = job_of_blocks(2);
  profile.layers.push_back({.name = "head", .parameters = 300, .tied_parameters = 300});
  EXPECT_DOUBLE_EQ(parameters_of_rank(profile, {}, {{0, 3}}), 2000);
  EXPECT_DOUBLE_EQ(parameters_of_rank(profile, {.stages = 2}, {{1, 3}}), 1300);
  // In a V layout one rank has both ends.
  EXPECT_DOUBLE_EQ(parameters_of_rank(profile, {.stages = 2}, {{0, 1}, {1, 3}}), 2000);
}

TEST(MemoryPlan, gradients_take_the_place_of_activations) {
  // Each block has 4000 bytes of gradients and, for each sample, 100 bytes of activations.
  JobProfile profile = job_of_blocks(2);
  // The peak is the larger of two moments: all activations with the last layer's gradients, or the
  // first layer's activations with both layers' gradients.
  EXPECT_DOUBLE_EQ(peak_of_pass(profile, {}, {0, 2}, 2), 200 + 8000);
  EXPECT_DOUBLE_EQ(peak_of_pass(profile, {}, {0, 2}, 100), 20'000 + 4000);
  const Machine machine{.ranks_per_host = 1};
  EXPECT_DOUBLE_EQ(plan_memory(profile, machine, {}, 100, {{{0, 2}}}, {20'000}).rank.activations,
                   16'000);
  // From the second micro-batch on, all gradients exist from the beginning of the pass.
  EXPECT_DOUBLE_EQ(plan_memory(profile, machine, {.micro_batches = 2}, 100, {{{0, 2}}}, {20'000})
                       .rank.activations,
                   20'000);
}

TEST(MemoryPlan, divided_gradients_leave_while_the_pass_runs) {
  JobProfile profile = job_of_blocks(2);
  profile.unit_bytes = 500;
  // The rank keeps half of 4000 bytes while four units are under way; later it keeps half of 8000.
  const Way way{.replicas = 2, .shard_stage = 2};
  EXPECT_DOUBLE_EQ(peak_of_pass(profile, way, {0, 2}, 100), 20'000 + 2000 + 2000);
  EXPECT_DOUBLE_EQ(peak_of_pass(profile, way, {0, 2}, 2), 100 * 2 + 4000 + 2000);
  // The gradients of a pipeline stay whole until the end of its step.
  const Way piped{.replicas = 2, .stages = 2, .shard_stage = 2, .micro_batches = 2};
  const Machine machine{.ranks_per_host = 4};
  EXPECT_DOUBLE_EQ(
      plan_memory(profile, machine, piped, 1, {{{0, 1}}, {{1, 2}}}, {200, 100}).rank.gradients,
      4000);
}

TEST(MemoryPlan, a_pipelines_stage_makes_all_gradients_of_a_micro_batch_before_it_adds_them) {
  const JobProfile profile = job_of_blocks(4);
  const Machine machine{.ranks_per_host = 2};
  const Way way{.stages = 2, .micro_batches = 2};
  // At the peak both blocks' gradients (8000 bytes) exist besides the 400 bytes kept, less one
  // block's activations (100 bytes), already freed.
  EXPECT_DOUBLE_EQ(
      plan_memory(profile, machine, way, 1, {{{0, 2}}, {{2, 4}}}, {400, 200}).rank.activations,
      400 + 8000 - 100);
  // With one block in each stage, a stage's gradients are half as large; a rank with two stages has
  // the parameters of both.
  const MemoryPlan looped =
      plan_memory(profile, machine, way, 1, {{{0, 1}, {2, 3}}, {{1, 2}, {3, 4}}}, {400, 400});
  EXPECT_DOUBLE_EQ(looped.rank.activations, 400 + 4000);
  EXPECT_DOUBLE_EQ(looped.rank.parameters, 8000);
}

TEST(MemoryPlan, what_waits_between_the_halves_of_a_backward_pass) {
  JobProfile profile = job_of_blocks(2);
  EXPECT_DOUBLE_EQ(deferred_of_stage(profile, {}, {1, 2}), 100);
  profile.layers[0].deferred_bytes = profile.layers[1].deferred_bytes = 160;
  EXPECT_DOUBLE_EQ(deferred_of_stage(profile, {}, {1, 2}), 160);
  // Stage 0 computes no gradient of its input.
  EXPECT_DOUBLE_EQ(deferred_of_stage(profile, {}, {0, 1}), 100);
}

TEST(MemoryPlan, the_host_that_needs_most_counts) {
  JobProfile profile = job_of_blocks(3);
  const Machine machine{.hosts = 2, .ranks_per_host = 2};
  const Way way{.replicas = 2, .stages = 2, .micro_batches = 2};
  // Stage 0 has two blocks, and both of its replicas are on host 0.
  const MemoryPlan of_two = plan_memory(profile, machine, way, 1, {{{0, 2}}, {{2, 3}}}, {200, 100});
  const double of_pass = 8000 - 100;  // gradients of a micro-batch
  EXPECT_DOUBLE_EQ(of_two.rank.all(), 2000 * 16 + 200 + of_pass);
  EXPECT_DOUBLE_EQ(of_two.host, 2 * (2000 * 16 + 200 + of_pass));
}

}  // namespace
}  // namespace paceline::planning
