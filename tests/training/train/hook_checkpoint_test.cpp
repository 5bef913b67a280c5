// Checkpoints contain the state of communication hooks: a resumed run is bitwise equal to an
// uninterrupted one, and another number of ranks owes the same mean.

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/low_communication.h"
#include "paceline/training/parallel/reducer/gradient_placement.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/training_step.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

namespace fs = std::filesystem;
using MakeHook = std::function<std::shared_ptr<CommunicationHook>()>;

std::shared_ptr<CommunicationHook> low_rank() {
  return std::make_shared<PowerSGDHook>(PowerSGDOptions{.rank = 1, .start_step = 3});
}
std::shared_ptr<CommunicationHook> largest() { return std::make_shared<TopKHook>(0.05); }
std::shared_ptr<CommunicationHook> narrow() {
  return std::make_shared<CompressHook>(at::kBFloat16);
}

struct HookedRun {
  HookedRun(ProcessGroup& group, const MakeHook& make_hook) : run({&group, [](auto*) {}}) {
    if (make_hook) run.model.register_comm_hook(make_hook());
  }
  RunParts parts() { return {.reducer = &run.model.reducer()}; }
  void train(std::int64_t max_steps) { run.train({.epochs = 5, .max_steps = max_steps}); }
  std::string bits() {
    const at::Tensor flat = run.flat();
    const std::string_view bytes(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
    return std::to_string(std::hash<std::string_view>()(bytes));
  }
  // Restores the newest checkpoint, which must exist.
  void resume(Checkpointer& checkpointer) {
    checkpointer.attach(parts());
    run.state = checkpointer.restore(run.model.module(), run.optimizer)->state;
  }

  SmallRun run;
};

class HookCheckpointTest : public testing::Test {
 protected:
  HookCheckpointTest()
      : path_(fs::temp_directory_path() / ("hook_checkpoint_test." + std::to_string(getpid()))) {}
  ~HookCheckpointTest() override {
    fs::remove_all(path_);
    fs::remove(memory());
  }
  std::string memory() const { return path_.string() + ".memory"; }

  static std::vector<std::string> on_ranks(
      int world, const std::function<std::string(ProcessGroup& group)>& body) {
    std::vector<std::string> reports;
    for (const auto& result : harness::run_process_ranks(world, body)) {
      EXPECT_EQ(result.exit_code, 0) << result.report;
      reports.push_back(result.report);
    }
    return reports;
  }
  void save_after(int world, std::int64_t steps, const MakeHook& make_hook) const {
    on_ranks(world, [&](ProcessGroup& group) {
      HookedRun hooked(group, make_hook);
      Checkpointer checkpointer(hooked.run.group, {.folder = path_.string()});
      checkpointer.attach(hooked.parts());
      hooked.train(steps);
      auto& run = hooked.run;
      EXPECT_TRUE(checkpointer.save(run.state, run.model.module(), run.optimizer));
      EXPECT_TRUE(checkpointer.finish());
      return std::string();
    });
  }
  void expect_refused(const MakeHook& make_hook, const std::string& text) const {
    const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
      HookedRun hooked(group, make_hook);
      Checkpointer checkpointer(hooked.run.group, {.folder = path_.string()});
      hooked.resume(checkpointer);
      return std::string();
    });
    for (const auto& result : results) {
      EXPECT_EQ(result.code, ErrorCode::kInvalid);
      EXPECT_NE(result.report.find(text), std::string::npos) << result.report;
    }
  }

  const fs::path path_;
};

TEST_F(HookCheckpointTest, a_resumed_run_has_the_bits_of_one_that_was_not_interrupted) {
  for (const MakeHook& make_hook : {MakeHook(low_rank), MakeHook(largest), MakeHook(narrow)}) {
    for (const int world : {2, 3}) {
      fs::remove_all(path_);
      const auto straight = on_ranks(world, [&](ProcessGroup& group) {
        HookedRun hooked(group, make_hook);
        hooked.train(10);
        return hooked.bits();
      });
      save_after(world, 6, make_hook);
      const auto resumed = on_ranks(world, [&](ProcessGroup& group) {
        HookedRun hooked(group, make_hook);
        Checkpointer checkpointer(hooked.run.group, {.folder = path_.string()});
        hooked.resume(checkpointer);
        hooked.train(10);
        return hooked.bits();
      });
      EXPECT_EQ(resumed, straight) << make_hook()->name();
    }
  }
}

TEST_F(HookCheckpointTest, in_memory_it_is_kept_too) {
  const auto straight = on_ranks(2, [&](ProcessGroup& group) {
    HookedRun hooked(group, low_rank);
    Checkpointer checkpointer(hooked.run.group, {.folder = path_.string(), .memory = memory()});
    checkpointer.attach(hooked.parts());
    hooked.train(6);
    auto& run = hooked.run;
    EXPECT_TRUE(checkpointer.save_to_memory(run.state, run.model.module(), run.optimizer));
    hooked.train(10);
    return hooked.bits();
  });
  const auto resumed = on_ranks(2, [&](ProcessGroup& group) {
    HookedRun hooked(group, low_rank);
    Checkpointer checkpointer(hooked.run.group, {.folder = path_.string(), .memory = memory()});
    hooked.resume(checkpointer);
    hooked.train(10);
    return hooked.bits();
  });
  EXPECT_EQ(resumed, straight);
}

// 2 ranks save; then 3 ranks, 1 rank and 2 ranks restore the checkpoint.
TEST_F(HookCheckpointTest, another_number_of_ranks_owes_the_mean_of_what_was_owed) {
  const auto mean_owed = [](ProcessGroup& group, HookedRun& hooked) {
    std::map<std::string, double> norms;
    for (const auto& [name, tensor] : hooked.run.model.reducer().hook_state().owed) {
      const at::Tensor mean = tensor.clone();
      all_reduce(group, mean, ReduceOp::kMean);
      norms[name] = mean.norm().item<double>();
    }
    std::string text;
    for (const auto& [name, norm] : norms) text += fmt::format("{} {:.4f}\n", name, norm);
    return text;
  };
  std::vector<std::string> before;
  before = on_ranks(2, [&](ProcessGroup& group) {
    HookedRun hooked(group, largest);
    Checkpointer checkpointer(hooked.run.group, {.folder = path_.string()});
    checkpointer.attach(hooked.parts());
    hooked.train(4);
    auto& run = hooked.run;
    EXPECT_TRUE(checkpointer.save(run.state, run.model.module(), run.optimizer));
    EXPECT_TRUE(checkpointer.finish());
    return mean_owed(group, hooked);
  });
  EXPECT_NE(before[0].find("error.head.weight"), std::string::npos) << before[0];
  for (const int world : {3, 1, 2}) {
    const auto after = on_ranks(world, [&](ProcessGroup& group) {
      HookedRun hooked(group, largest);
      Checkpointer checkpointer(hooked.run.group, {.folder = path_.string()});
      hooked.resume(checkpointer);
      const std::string text = mean_owed(group, hooked);
      hooked.train(6);
      return text;
    });
    for (const auto& text : after) EXPECT_EQ(text, before[0]) << world;
  }
}

TEST_F(HookCheckpointTest, another_hook_is_an_error_that_shows_both) {
  save_after(2, 2, largest);
  expect_refused(narrow, "name: bf16_compress here, top_k (0.05) in the saved state");
  expect_refused({}, "communication_hook: none here, one in the checkpoint");
}

// Ranks 0 and 2 have one part of a model, ranks 1 and 3 the other, and each part has a hook.
TEST_F(HookCheckpointTest, of_a_divided_model_it_is_refused_on_every_rank) {
  on_ranks(4, [&](ProcessGroup& group) {
    const auto replicas = group.split(group.rank() % 2, group.rank());
    HookedRun hooked(*replicas, largest);
    auto& run = hooked.run;
    hooked.train(2);
    Checkpointer checkpointer({&group, [](auto*) {}},
                              {.folder = path_.string(), .replicas = replicas});
    checkpointer.attach(hooked.parts());
    expect_error(ErrorCode::kUnsupported, {"hook", "cannot be saved if a model is divided"},
                 [&] { checkpointer.save(run.state, run.model.module(), run.optimizer); });
    group.barrier();
    return std::string();
  });
}

// The checkpoint is saved when the learners are equal. Plain SGD, because each learner has its own
// momenta.
TEST_F(HookCheckpointTest, learners_go_on_at_their_step) {
  const auto train = [&](std::int64_t save_at, bool resume, ProcessGroup& group) {
    const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
    const DeviceMesh mesh(shared, {{"learner", 2}, {"dp", 2}});
    torch::manual_seed(1);
    const auto net = std::make_shared<torch::nn::LinearImpl>(6, 4);
    DistributedDataParallel model(net, mesh.group("dp"));
    LowCommunication outer(mesh.group("learner"), mesh.group("dp"), model->parameters(),
                           {.period = 2, .warmup_steps = 2});
    optim::SGD optimizer(model->parameters(), {.lr = 0.1});
    Checkpointer checkpointer(shared, {.folder = path_.string()});
    checkpointer.attach(
        {.states = {state_of("outer", outer), state_of("outer.anchor", outer.anchor()),
                    state_of("outer.momentum", outer.momentum())}});
    TrainingState state;
    if (resume) state = checkpointer.restore(model.module(), optimizer)->state;
    while (state.step < 9) {
      const auto value = static_cast<float>(state.step + 3 * group.rank());
      model.forward(at::arange(6, at::kFloat).view({1, 6}) * 0.1F + value)
          .square()
          .sum()
          .backward();
      optim::clip_grad_norm(model->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
      outer.step();
      ++state.step;
      if (state.step != save_at) continue;
      EXPECT_TRUE(outer.is_synchronised());
      EXPECT_TRUE(checkpointer.save(state, model.module(), optimizer));
      EXPECT_TRUE(checkpointer.finish());
    }
    std::string text;
    for (const auto& parameter : model->parameters())
      text += fmt::format("{:a} ", parameter.sum().item<double>());
    return text;
  };
  const auto straight = on_ranks(4, [&](ProcessGroup& group) { return train(6, false, group); });
  EXPECT_NE(straight[0], straight[2]);
  const auto resumed = on_ranks(4, [&](ProcessGroup& group) { return train(0, true, group); });
  EXPECT_EQ(resumed, straight);
}

}  // namespace
}  // namespace paceline::train
