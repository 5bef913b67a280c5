// What a program with a loop of its own tells of its steps: paceline top, paceline advise.

#include "paceline/parallel/pass_counter.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "paceline/parallel/distributed_data_parallel.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

class PassCounterTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("RANK", "0", 1);
    setenv("PACELINE_STEP_LOG", folder_.path().c_str(), 1);
    setenv("PACELINE_FLIGHT_DIR", folder_.path().c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : {"RANK", "PACELINE_STEP_LOG", "PACELINE_FLIGHT_DIR"}) unsetenv(name);
  }

  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> all;
    std::ifstream file(folder_.file("rank-000.jsonl"));
    for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  StepReading gauge() const {
    return read_step_gauge(folder_.file("rank-000.steps")).value_or(StepReading{});
  }

  const FreshDirectory folder_;
};

TEST_F(PassCounterTest, a_pass_that_averages_gradients_is_a_step_of_all_samples_since_the_last) {
  harness::run_ranks_ok(1, [&](ProcessGroup& group) {
    const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
    DistributedDataParallel model(std::make_shared<torch::nn::LinearImpl>(4, 2), shared);
    const auto pass = [&](std::int64_t size) { model(at::ones({size, 4})).sum().backward(); };
    pass(3);
    {
      const auto accumulating = model.no_sync();
      pass(5);
    }
    pass(2);
    {
      const at::NoGradGuard evaluating;
      model(at::ones({100, 4}));
    }
    pass(1);
    EXPECT_EQ(gauge().steps, 3U);
    EXPECT_EQ(gauge().samples, 11U);
  });
  const auto all = lines();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0], nlohmann::json({{"event", "model"}, {"parameter_bytes", 40}}));
  const std::vector<int> samples = {3, 7, 1};
  for (std::size_t step = 0; step < samples.size(); ++step) {
    EXPECT_EQ(all[step + 1]["samples"], samples[step]);
    EXPECT_GT(all[step + 1]["seconds"], 0);
  }
}

TEST_F(PassCounterTest, a_loop_that_counts_for_itself_is_not_counted_twice) {
  PassCounter passes(0);
  {
    StepLog own;
    passes.begin_forward(8, true);
    own.step(8, 0.5, 0);
    passes.end_backward(0);
    EXPECT_EQ(gauge().steps, 1U);
    EXPECT_EQ(gauge().samples, 8U);
  }
  passes.begin_forward(2, true);
  passes.end_backward(0);
  EXPECT_EQ(gauge().steps, 1U);  // the own log's file went with it
  EXPECT_EQ(gauge().samples, 2U);
  EXPECT_FALSE(StepLog().counts());
}

}  // namespace
}  // namespace paceline
