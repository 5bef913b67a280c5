#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/launcher/placement/training_advice.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kMemory = 16'000'000'000;

// A trial of 100 steps of 64 samples each, at this speed.
Trial trial(int ranks, int threads, double samples_per_second, std::int64_t parameter_bytes = 0) {
  Trial result;
  result.combination = {ranks, threads};
  result.num_steps = 100;
  result.samples = 6400;
  result.seconds = 6400 / samples_per_second;
  result.communication_seconds = ranks > 1 ? 0.05 * result.seconds : 0;
  result.memory_bytes = 500'000'000;
  result.parameter_bytes = parameter_bytes;
  return result;
}

TEST(Combinations, go_from_one_core_to_one_rank_a_core) {
  EXPECT_THAT(sensible_combinations(load_topology("core:1 pu:2"), {}),
              ElementsAre(Combination{1, 1}));
  EXPECT_THAT(sensible_combinations(load_topology("core:2 pu:1"), {}),
              ElementsAre(Combination{1, 1}, Combination{1, 2}, Combination{2, 1}));
  EXPECT_THAT(sensible_combinations(load_topology("core:6 pu:1"), {}),
              ElementsAre(Combination{1, 1}, Combination{1, 6}, Combination{2, 3},
                          Combination{3, 2}, Combination{4, 1}, Combination{6, 1}));
}

TEST(Combinations, divide_the_global_batch) {
  EXPECT_THAT(
      sensible_combinations(load_topology("core:6 pu:1"), 32),
      ElementsAre(Combination{1, 1}, Combination{1, 6}, Combination{2, 3}, Combination{4, 1}));
}

TEST(Combinations, are_few_and_keep_the_extremes) {
  const auto all = sensible_combinations(load_topology("core:96 pu:2"), {});
  EXPECT_EQ(all.size(), kMaxCombinations);
  EXPECT_EQ(all.front(), (Combination{1, 1}));
  EXPECT_EQ(all.back(), (Combination{96, 1}));
}

TEST(Advice, calls_more_than_the_cores_can_give_noise) {
  struct Row {
    double two_threads, two_ranks;  // samples/s; one core gives 1000
    std::string gain;               // "": no warning is expected
  };
  for (const Row& row : std::vector<Row>{{1500, 3280, "3.28"},
                                         {2500, 1500, "2.50"},
                                         {1500, 2050, ""},
                                         {300, 1900, ""},
                                         {1000, 1010, ""}}) {
    const auto advice = conclude(
        {trial(1, 1, 1000), trial(1, 2, row.two_threads), trial(2, 1, row.two_ranks)}, kMemory);
    if (row.gain.empty()) {
      EXPECT_THAT(advice.reasons, Not(Contains(Says("advise.noise")))) << row.two_ranks;
    } else {
      EXPECT_THAT(advice.reasons, Contains(Says("advise.noise", row.gain, "2 cores")));
    }
  }
}

TEST(Advice, memory_that_was_not_seen_is_not_zero) {
  Trial blind = trial(1, 1, 1000, 1'000'000);
  blind.memory_bytes = 0;
  const std::string table = trial_table({blind}, conclude({blind}, kMemory));
  EXPECT_THAT(table, Says("advise.memory_not_seen"));
  EXPECT_THAT(table, Not(HasSubstr("0 KB")));
}

TEST(Advice, takes_the_fastest_and_says_why) {
  const auto advice = conclude({trial(1, 1, 1000), trial(1, 2, 1400), trial(2, 1, 1900)}, kMemory);
  EXPECT_EQ(advice.best, (Combination{2, 1}));
  EXPECT_EQ(advice.answer, "data parallel, 2 ranks on this machine");
  EXPECT_THAT(advice.reasons, Contains(Says("advise.faster_than", "1.90", "one rank on one core")));
  EXPECT_THAT(advice.reasons, Contains(Says("advise.faster_than", "1.36", "the best single rank")));
  EXPECT_THAT(advice.reasons, Contains("ranks wait for each other 5% of the time"));
}

TEST(Advice, prefers_what_is_simpler_among_equals) {
  EXPECT_EQ(conclude({trial(1, 1, 1000), trial(2, 2, 1990), trial(4, 1, 2000)}, kMemory).best,
            (Combination{2, 2}));
  const auto one_core = conclude({trial(1, 1, 1000), trial(1, 2, 1010)}, kMemory);
  EXPECT_EQ(one_core.answer, "stay on one core");
}

TEST(Advice, does_not_distribute_for_a_small_gain) {
  const auto advice = conclude({trial(1, 1, 800), trial(1, 2, 1000), trial(2, 1, 1100)}, kMemory);
  EXPECT_EQ(advice.best, (Combination{1, 2}));
  EXPECT_EQ(advice.answer, "one rank with 2 threads, not distributed");
  EXPECT_THAT(advice.reasons, Contains(Says("advise.not_worth_it", 2, "1.10")));
}

TEST(Advice, weighs_memory_against_parameters) {
  auto of = [](std::int64_t bytes) {
    return conclude({trial(1, 1, 1000, bytes), trial(2, 1, 1900, bytes)}, kMemory);
  };
  EXPECT_THAT(of(1'700'000).reasons, Contains(Says("advise.replicas_fit")));
  EXPECT_EQ(of(2'000'000'000).answer,
            "data parallel, 2 ranks that share the optimizer's state (Optimizer::shard)");
  EXPECT_THAT(of(0).reasons, Contains(Says("advise.parameters_unknown")));
}

TEST(Advice, says_how_ranks_that_ran_out_of_memory_would_fit) {
  Trial failed = trial(2, 1, 1, 1'500'000'000);
  failed.problem = "failed with exit code 137";
  failed.lacked_memory = true;
  const auto advice = conclude({trial(1, 1, 1000, 1'500'000'000), failed}, kMemory);
  EXPECT_EQ(advice.best, (Combination{1, 1}));
  EXPECT_THAT(advice.answer, Says("advise.sharded_optimizer", 2));
}

TEST(Advice, without_a_rank_that_fits_says_how_many_machines_would_do) {
  Trial failed;
  failed.problem = "failed with exit code 137";
  failed.parameter_bytes = 6'000'000'000;
  failed.lacked_memory = true;
  const auto advice = conclude({failed}, kMemory);
  EXPECT_FALSE(advice.best.has_value());
  EXPECT_EQ(advice.answer, "share the whole model's state among at least 2 machines like this one");
  EXPECT_THAT(advice.reasons, Contains("1 rank: failed with exit code 137"));
  EXPECT_EQ(conclude({Trial{.problem = "failed"}}, kMemory).answer, "");
}

TEST(Advice, weighs_the_network_against_the_step) {
  // 1.6 ms of communication for a step of 64 ms.
  const auto small = conclude({trial(1, 1, 1000, 1'000'000)}, kMemory);
  EXPECT_THAT(small.reasons, Contains(Says("advise.machines_would_scale", "1.6", "64.0")));
  const auto large = conclude({trial(1, 1, 1000, 100'000'000)}, kMemory);
  EXPECT_THAT(large.reasons, Contains(Says("advise.network_would_limit", 3)));
}

TEST(Advice, warns_when_the_trainings_differ) {
  Trial twice = trial(2, 1, 1900);
  twice.samples *= 2;
  const auto advice = conclude({trial(1, 1, 1000), twice}, kMemory);
  EXPECT_THAT(advice.reasons, Contains(Says("advise.trainings_differ", 64, 128)));
}

TEST(Advice, leaves_failed_trials_out) {
  Trial failed;
  failed.combination = {2, 1};
  failed.problem = "failed with exit code 3";
  const auto advice = conclude({trial(1, 1, 1000), failed}, kMemory);
  EXPECT_EQ(advice.best, (Combination{1, 1}));
  EXPECT_THAT(trial_table({trial(1, 1, 1000), failed}, advice), HasSubstr("exit code 3"));
  EXPECT_FALSE(conclude({failed}, kMemory).best.has_value());
}

}  // namespace
}  // namespace paceline::launcher
