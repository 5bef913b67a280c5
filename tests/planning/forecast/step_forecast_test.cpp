#include "paceline/planning/forecast/step_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/planning/forecast/step_parts.h"

#include "tests/harness/says.h"
#include "tests/planning/forecast/small_job.h"

namespace paceline::planning {
namespace {

using harness::Says;

Forecast forecast(const JobProfile& profile, const Machine& machine, std::int64_t batch,
                  const Way& way) {
  return Forecaster(profile, machine, batch).forecast(way);
}

TEST(StepForecast, replicas_divide_the_batch) {
  // 4 blocks x 3 ms per sample.
  const JobProfile profile = job_of_blocks(4);
  EXPECT_NEAR(forecast(profile, ideal_machine(1, 1), 8, {}).step_s(), 0.096, 1e-12);
  EXPECT_NEAR(forecast(profile, ideal_machine(1, 4), 8, {.replicas = 4}).step_s(), 0.024, 1e-12);
}

TEST(StepForecast, a_fixed_part_is_not_divided) {
  JobProfile profile = job_of_blocks(1);
  profile.layers[0].forward.fixed_s = 0.010;
  profile.data_s = 0.001;
  profile.other_s = 0.002;
  profile.optimizer_s_per_parameter = 1e-6;
  // 10 ms + 2 samples x 3 ms + 3 ms for data and other work + 1 ms for 1000 parameters.
  EXPECT_NEAR(forecast(profile, ideal_machine(1, 4), 8, {.replicas = 4}).step_s(), 0.020, 1e-12);
}

TEST(StepForecast, parts_divide_layers_and_exchange_between_them) {
  Machine machine = ideal_machine(1, 2);
  machine.links.meet_s = 0.5e-3;
  // 12 ms per sample, halved; 4 layers x 2 exchanges x 2 passes, each with two meetings.
  const Forecast of_two = forecast(divisible_job(4, 2), machine, 1, {.parts = 2});
  EXPECT_NEAR(of_two.times.compute, 0.006, 1e-12);
  EXPECT_NEAR(of_two.times.exchange, 0.016, 1e-12);
  EXPECT_EQ(of_two.times.gradients, 0);
}

TEST(StepForecast, a_pipeline_has_bubbles) {
  // Stages of 6 ms per sample; 4 micro-batches of 2 samples, and a bubble of (S - 1) (F + B).
  const Forecast piped =
      forecast(job_of_blocks(4), ideal_machine(1, 2), 8, {.stages = 2, .micro_batches = 4});
  EXPECT_NEAR(piped.times.compute, 0.048, 1e-12);
  EXPECT_NEAR(piped.times.bubble, 0.012, 1e-12);
}

TEST(StepForecast, halves_of_backward_passes_take_what_was_measured) {
  JobProfile profile = job_of_blocks(4);
  profile.schedules = {"1f1b", "zero-bubble"};
  const Way way{.stages = 2, .schedule = "zero-bubble", .micro_batches = 4};
  const double even = forecast(profile, ideal_machine(1, 2), 4, way).step_s();
  for (LayerProfile& layer : profile.layers) {
    layer.input_half = {.sample_s = 1.5e-3};
    layer.weight_half = {.fixed_s = 0.5e-3, .sample_s = 1e-3};
  }
  // Only the second stage splits its backward passes: 2 blocks x 4 micro-batches x 1 ms more than
  // whole passes.
  const Forecast dear = forecast(profile, ideal_machine(1, 2), 4, way);
  EXPECT_GT(dear.step_s(), even + 0.005);
  EXPECT_NEAR(dear.times.compute, 0.024 + 0.008 / 2, 1e-12);
}

TEST(StepForecast, a_pipeline_adds_gradients_up) {
  JobProfile profile = job_of_blocks(4);
  const Way way{.stages = 2, .micro_batches = 4};
  const double before = forecast(profile, ideal_machine(1, 2), 4, way).step_s();
  for (LayerProfile& layer : profile.layers) layer.add_s = 0.5e-3;
  // The 2 blocks of a rank take 1 ms more for each micro-batch, and 1 ms more in the bubble.
  EXPECT_NEAR(forecast(profile, ideal_machine(1, 2), 4, way).step_s(), before + 0.005, 1e-12);
}

TEST(StepForecast, a_program_that_searches_is_searched_for) {
  JobProfile profile = job_of_blocks(8);
  profile.schedules = {"1f1b", "search"};
  const Way named{.stages = 2, .micro_batches = 4};
  Way searched = named;
  searched.schedule = kSearched;
  const Machine machine = ideal_machine(1, 2);
  const Forecast best = forecast(profile, machine, 4, searched);
  EXPECT_LT(best.step_s(), 0.95 * forecast(profile, machine, 4, named).step_s());
  EXPECT_GE(best.step_s(), 4 * 8 * 3e-3 / 2);
  EXPECT_DOUBLE_EQ(best.memory.rank.parameters, 4 * 1000 * 4);  // half of the blocks, in any layout
}

TEST(StepForecast, activations_of_a_pipeline_are_those_under_way) {
  // Rank 0 of 1f1b keeps two micro-batches of 2 samples in 2 blocks of 100 bytes; rank 1 keeps one.
  const Forecast piped =
      forecast(job_of_blocks(4), ideal_machine(1, 2), 8, {.stages = 2, .micro_batches = 4});
  // The gradients of 2 blocks replace the activations of one block.
  EXPECT_DOUBLE_EQ(piped.memory.rank.activations, 2 * 2 * 200 + 8000 - 2 * 100);
  // Without a pipeline the peak is when all gradients exist, with 8 samples in the first block.
  EXPECT_DOUBLE_EQ(forecast(job_of_blocks(4), ideal_machine(1, 1), 8, {}).memory.rank.activations,
                   8 * 100);
}

TEST(StepForecast, ranks_beyond_the_cores_take_turns) {
  Machine machine = ideal_machine(1, 4);
  machine.cores_per_host = 2;
  // Twice the 24 ms of four cores; in a pipeline the other ranks fill the bubble.
  EXPECT_NEAR(forecast(job_of_blocks(4), machine, 8, {.replicas = 4}).step_s(), 0.048, 1e-12);
  const Forecast piped = forecast(job_of_blocks(4), machine, 8, {.stages = 4, .micro_batches = 8});
  EXPECT_GE(piped.step_s(), 0.048);
  EXPECT_LT(piped.step_s(), 0.048 + 2 * 3 * 0.003);
}

TEST(StepForecast, gradients_hide_under_the_backward_pass) {
  JobProfile profile = job_of_blocks(4);  // 4000 bytes of gradients per layer
  profile.bucket_bytes = 4000;
  Machine machine = ideal_machine(2, 1);
  machine.links.network.bytes_per_s = 4e6;  // a bucket takes 1 ms: 2 x 4000 x 1/2 bytes
  const Forecast of_two = forecast(profile, machine, 4, {.replicas = 2});
  EXPECT_NEAR(of_two.times.gradients, 0.001, 1e-12);  // only the last bucket is exposed
  EXPECT_NEAR(of_two.hidden_s, 0.003, 1e-12);
  // With divided gradients the last bucket takes half as long, and gathering the updated parameters
  // takes 2 ms.
  profile.shard_stages = {0, 2};
  profile.unit_bytes = 4000;
  const Forecast divided = forecast(profile, machine, 4, {.replicas = 2, .shard_stage = 2});
  EXPECT_NEAR(divided.times.gradients, 0.0005 + 0.002, 1e-12);
}

TEST(StepForecast, a_pipeline_exchanges_gradients_after_its_passes) {
  const JobProfile profile = job_of_blocks(4);
  Machine machine = ideal_machine(2, 2);
  machine.links.network.bytes_per_s = 4e6;
  // Stages inside: the 8000 bytes of each stage cross the link, which two stages share.
  const Forecast inside =
      forecast(profile, machine, 4,
               {.replicas = 2, .stages = 2, .stages_outside = false, .micro_batches = 2});
  EXPECT_NEAR(inside.times.gradients, 0.004, 1e-12);
  EXPECT_EQ(inside.hidden_s, 0);
  // Stages outside: the replicas of a stage are on one host; outputs of 2 x 10 bytes cross the link
  // instead.
  const Forecast outside =
      forecast(profile, machine, 4, {.replicas = 2, .stages = 2, .micro_batches = 2});
  EXPECT_NEAR(outside.times.gradients, 0, 1e-12);
  EXPECT_GT(outside.times.bubble, inside.times.bubble);
}

TEST(StepForecast, the_optimizers_step_is_divided_from_stage_1_on) {
  JobProfile profile = job_of_blocks(4);
  profile.optimizer_s_per_parameter = 1e-6;
  profile.shard_stages = {0, 1};
  const Machine machine = ideal_machine(1, 4);
  EXPECT_NEAR(forecast(profile, machine, 4, {.replicas = 4}).times.optimizer, 4e-3, 1e-12);
  EXPECT_NEAR(forecast(profile, machine, 4, {.replicas = 4, .shard_stage = 1}).times.optimizer,
              1e-3, 1e-12);
}

TEST(StepForecast, failures_and_slow_ranks) {
  Machine machine = ideal_machine(4, 2);
  machine.mtbf_s = 40'000;
  machine.checkpoint_s = 10;
  machine.restart_s = 100;
  machine.stragglers = 0.1;
  const Forecast eight = forecast(job_of_blocks(4), machine, 8, {.replicas = 8});
  const FailureCosts costs{.mtbf_s = 10'000, .checkpoint_s = 10, .restart_s = 100};
  EXPECT_DOUBLE_EQ(eight.interval_s, best_interval(costs));
  EXPECT_DOUBLE_EQ(eight.goodput, goodput(costs, eight.interval_s));
  EXPECT_NEAR(eight.times.stragglers, 0.1 * deviations_of_slowest(8) * 0.012, 1e-12);
  EXPECT_NEAR(eight.samples_per_second(), 8 * eight.goodput / eight.step_s(), 1e-9);
  machine.interval_s = 600;
  EXPECT_DOUBLE_EQ(forecast(job_of_blocks(4), machine, 8, {.replicas = 8}).goodput,
                   goodput(costs, 600));
}

TEST(StepForecast, refuses_a_way_that_is_none) {
  try {
    forecast(job_of_blocks(4), ideal_machine(1, 4), 8, {.replicas = 3});
    FAIL() << "3 ranks of 4";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_THAT(error.what(), Says("way.other_number_of_ranks", "pp=1,dp=3,tp=1", 3, 4));
  }
  EXPECT_THROW(Forecaster(job_of_blocks(1), ideal_machine(1, 1), 0), Error);
}

}  // namespace
}  // namespace paceline::planning
