// The steps that a program with its own training loop reports to `paceline top` and `paceline
// advise`.

#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "paceline/engine/telemetry/step_gauge.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/pass_monitor.h"

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

// A kind of training loop, and the number of steps that the counter must report for it.
struct LoopKind {
  std::string name;
  std::uint64_t wanted;
  // Returns `step`, which runs one iteration.
  std::function<std::function<void()>(const std::shared_ptr<ProcessGroup>& group)> begin;
};

using Linear = torch::nn::LinearImpl;
using Wrapped = DistributedDataParallel<Linear>;

// A module with an optimizer.
struct Learner {
  explicit Learner(const std::shared_ptr<ProcessGroup>& group)
      : model(std::make_shared<Linear>(2, 2), group),
        optimizer(model.parameters(), torch::optim::SGDOptions(0.01)) {}
  void backward() { model(at::ones({3, 2})).sum().backward(); }
  void step() {
    optimizer.step();
    optimizer.zero_grad();
  }
  Wrapped model;
  torch::optim::SGD optimizer;
};

std::shared_ptr<Learner> learner(const std::shared_ptr<ProcessGroup>& group) {
  return std::make_shared<Learner>(group);
}

std::vector<LoopKind> loop_kinds(int iterations) {
  using Group = const std::shared_ptr<ProcessGroup>&;
  const auto each = static_cast<std::uint64_t>(iterations);
  return {
      {"plain", each,
       [](Group group) {
         return [it = learner(group)] {
           it->backward();
           it->step();
         };
       }},
      {"Paceline's optimizer", each,
       [](Group group) {
         const auto model = std::make_shared<Wrapped>(std::make_shared<Linear>(2, 2), group);
         const auto optimizer =
             std::make_shared<optim::SGD>(model->parameters(), optim::SGDOptions{.lr = 0.01});
         return [=] {
           (*model)(at::ones({3, 2})).sum().backward();
           optimizer->step();
           optimizer->zero_grad();
         };
       }},
      {"two losses", each,
       [](Group group) {
         return [it = learner(group)] {
           it->backward();
           it->backward();
           it->step();
         };
       }},
      {"accumulation", each,
       [](Group group) {
         return [it = learner(group)] {
           for (int i = 0; i < 2; ++i) {
             const auto accumulating = it->model.no_sync();
             it->backward();
           }
           it->backward();
           it->step();
         };
       }},
      {"evaluation between", each,
       [](Group group) {
         return [it = learner(group)] {
           it->backward();
           it->step();
           const at::NoGradGuard evaluating;
           it->model(at::ones({9, 2}));
         };
       }},
      // The first pass comes before the first update of the weights.
      {"GAN", each + 1,
       [](Group group) {
         return [real = learner(group), fake = learner(group)] {
           auto& critic = *real;
           critic.backward();
           critic.model(fake->model(at::ones({3, 2})).detach()).sum().backward();
           critic.step();
           critic.model(fake->model(at::ones({3, 2}))).sum().backward();
           fake->step();
           critic.optimizer.zero_grad();
         };
       }},
      {"GAN with a third module", each + 1,
       [](Group group) {
         return [critic = learner(group), maker = learner(group), style = learner(group)] {
           critic->backward();
           critic->step();
           critic->model(maker->model(style->model(at::ones({3, 2})))).sum().backward();
           maker->step();
           style->step();
           critic->optimizer.zero_grad();
         };
       }},
      {"a closure that is called twice a step", 2 * each,
       [](Group group) {
         return [it = learner(group)] {
           for (int i = 0; i < 2; ++i) {
             it->backward();
             it->step();
           }
         };
       }},
      {"no step at all", each - PassCounter::kPatience + 1,
       [](Group group) { return [it = learner(group)] { it->backward(); }; }},
      {"changes through data()", each,
       [](Group group) {
         return [it = learner(group)] {
           it->backward();
           for (const at::Tensor& parameter : it->model.parameters()) {
             parameter.data().sub_(parameter.grad());
             parameter.mutable_grad() = at::Tensor();
           }
         };
       }},
  };
}

TEST_F(PassCounterTest, an_iteration_of_every_kind_of_loop_is_a_step) {
  constexpr int kIterations = 20;
  for (const LoopKind& kind : loop_kinds(kIterations)) {
    harness::run_ranks_ok(1, [&](ProcessGroup& group) {
      const auto iteration = kind.begin({&group, [](auto*) {}});
      for (int i = 0; i < kIterations; ++i) iteration();
      EXPECT_EQ(gauge().steps, kind.wanted) << kind.name;
    });
  }
}

TEST_F(PassCounterTest, a_step_has_all_samples_since_the_last) {
  harness::run_ranks_ok(1, [&](ProcessGroup& group) {
    Learner it({&group, [](auto*) {}});
    const auto pass = [&](std::int64_t size) { it.model(at::ones({size, 2})).sum().backward(); };
    pass(3);
    it.step();
    {
      const auto accumulating = it.model.no_sync();
      pass(5);
    }
    pass(2);
    it.step();
    {
      const at::NoGradGuard evaluating;
      it.model(at::ones({100, 2}));
    }
    pass(1);
    EXPECT_EQ(gauge().steps, 3U);
    EXPECT_EQ(gauge().samples, 11U);
  });
  const auto all = lines();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0], nlohmann::json({{"event", "model"}, {"parameter_bytes", 24}}));
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
    passes.end_backward(0, 0);
    EXPECT_EQ(gauge().steps, 1U);
    EXPECT_EQ(gauge().samples, 8U);
  }
  passes.begin_forward(2, true);
  passes.end_backward(0, 1);
  EXPECT_EQ(gauge().steps, 1U);  // the file of the program's own log was removed with the log
  EXPECT_EQ(gauge().samples, 2U);
  EXPECT_FALSE(StepLog().counts());
}

}  // namespace
}  // namespace paceline
