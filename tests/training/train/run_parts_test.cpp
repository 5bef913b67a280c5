// A checkpoint also restores the other parts of a run besides its module and optimizer: a schedule,
// a loss scaler, an average of the weights, the rates of several groups. A state that a memory
// fault has changed is not saved.

#include "paceline/training/train/run_parts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/training_state.h"

#include "tests/harness/process_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

namespace fs = std::filesystem;

// A run with all of these parts.
struct WholeRun {
  explicit WholeRun(ProcessGroup& group, std::int64_t steps = 12)
      : run({&group, [](auto*) {}}),
        schedule(run.optimizer, {.T_max = steps, .warmup_steps = 4}),
        average(run.model->parameters(), 0.9) {}

  RunParts parts() { return {&schedule, &scaler, &average}; }

  void train(std::int64_t max_steps) {
    LoopHooks hooks;
    hooks.after_step = [&](const StepReport&) {
      average.update();
      schedule.step();
      // The loss scaler has had one good step.
      run.model.module().head->bias.mutable_grad() = at::zeros_like(run.model.module().head->bias);
      scaler.unscale(run.optimizer);
      scaler.update();
      run.optimizer.zero_grad();
    };
    run.train({.epochs = 4, .max_steps = max_steps}, hooks);
  }

  // All bits of the run.
  std::string bits() {
    std::vector<at::Tensor> all = {run.flat()};
    for (const auto& [name, tensor] : average.state())
      all.push_back(tensor.to(at::kFloat).flatten());
    const at::Tensor flat = at::cat(all);
    const std::string_view bytes(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
    std::ostringstream out;
    out << std::hash<std::string_view>()(bytes) << std::hexfloat << ' '
        << run.optimizer.learning_rate() << ' ' << scaler.loss_scale() << ' '
        << scaler.growth_tracker() << ' ' << schedule.num_steps();
    return out.str();
  }

  SmallRun run;
  optim::CosineAnnealingLR schedule;
  optim::GradScaler scaler{{.growth_interval = 3}};
  optim::ExponentialMovingAverage average;
};

class RunPartsTest : public testing::Test {
 protected:
  RunPartsTest()
      : path_(fs::temp_directory_path() / ("run_parts_test." + std::to_string(getpid()))) {}
  ~RunPartsTest() override { fs::remove_all(path_); }

  using Body = std::function<std::string(ProcessGroup& group)>;

  // Runs `body` on two ranks, which are processes; returns their reports.
  static std::string on_two_ranks(const Body& body) {
    const auto results = harness::run_process_ranks(2, body);
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
    return results[0].report + "|" + results[1].report;
  }

  // Expects Error(`code`) with `text` on both ranks.
  static void expect_error(ErrorCode code, const std::string& text, const Body& body) {
    for (const auto& result : harness::run_process_ranks(2, body)) {
      EXPECT_TRUE(result.threw);
      EXPECT_EQ(result.code, code) << result.report;
      EXPECT_NE(result.report.find(text), std::string::npos) << result.report;
    }
  }

  void save_after(std::int64_t steps) {
    on_two_ranks([&](ProcessGroup& group) {
      WholeRun whole(group);
      Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
      checkpointer.attach(whole.parts());
      whole.train(steps);
      EXPECT_TRUE(
          checkpointer.save(whole.run.state, whole.run.model.module(), whole.run.optimizer));
      EXPECT_TRUE(checkpointer.finish());
      return std::string();
    });
  }

  const fs::path path_;
};

TEST_F(RunPartsTest, a_resumed_run_ends_with_the_bits_of_one_that_was_not_interrupted) {
  const auto straight = on_two_ranks([](ProcessGroup& group) {
    WholeRun whole(group);
    whole.train(14);
    return whole.bits();
  });
  save_after(8);
  const auto resumed = on_two_ranks([&](ProcessGroup& group) {
    WholeRun whole(group);
    Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
    checkpointer.attach(whole.parts());
    whole.run.state = checkpointer.restore(whole.run.model.module(), whole.run.optimizer)->state;
    whole.train(14);
    return whole.bits();
  });
  EXPECT_EQ(resumed, straight);
}

TEST_F(RunPartsTest, in_memory_they_are_kept_too) {
  const std::string memory = (path_.string() + ".memory");
  const auto straight = on_two_ranks([&](ProcessGroup& group) {
    WholeRun whole(group);
    Checkpointer checkpointer(whole.run.group, {.folder = path_.string(), .memory = memory});
    checkpointer.attach(whole.parts());
    whole.train(7);
    EXPECT_TRUE(checkpointer.save_to_memory(whole.run.state, whole.run.model.module(),
                                            whole.run.optimizer));
    return whole.bits();
  });
  const auto restored = on_two_ranks([&](ProcessGroup& group) {
    WholeRun whole(group);
    Checkpointer checkpointer(whole.run.group, {.folder = path_.string(), .memory = memory});
    checkpointer.attach(whole.parts());
    const auto found = checkpointer.restore(whole.run.model.module(), whole.run.optimizer);
    EXPECT_TRUE(found && found->from_memory);
    return whole.bits();
  });
  fs::remove(memory);
  // Every rank gets rank 0's statistics of BatchNorm, so only rank 0 can be compared.
  EXPECT_EQ(restored.substr(0, restored.find('|')), straight.substr(0, straight.find('|')));
}

TEST_F(RunPartsTest, a_schedule_with_other_parameters_is_an_error_that_lists_them) {
  save_after(3);
  expect_error(
      ErrorCode::kInvalid,
      "T_max: 99 here, 12 in the saved state\n  To continue that run, attach the same parts with "
      "the "
      "same "
      "options (a longer run keeps the length of its schedule: StepOptions::schedule_steps",
      [&](ProcessGroup& group) {
        WholeRun whole(group, 99);
        Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
        checkpointer.attach(whole.parts());
        checkpointer.restore(whole.run.model.module(), whole.run.optimizer);
        return std::string();
      });
}

TEST_F(RunPartsTest, a_part_that_only_one_side_has_is_an_error_that_names_it) {
  save_after(3);
  expect_error(ErrorCode::kInvalid, "grad_scaler: none here, one in the checkpoint",
               [&](ProcessGroup& group) {
                 WholeRun whole(group);
                 Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
                 checkpointer.attach({&whole.schedule, nullptr, &whole.average});
                 checkpointer.restore(whole.run.model.module(), whole.run.optimizer);
                 return std::string();
               });
}

TEST_F(RunPartsTest, the_rates_of_all_groups_come_back_and_other_groups_are_refused) {
  const auto groups = [](WholeRun& whole, bool same) {
    auto first = whole.run.model->parameters();
    std::vector<at::Tensor> second;
    for (int moved = 0; moved < (same ? 1 : 2); ++moved) {
      second.insert(second.begin(), first.back());
      first.pop_back();
    }
    return std::vector<optim::ParameterGroup<optim::AdamWOptions>>{{first, {}}, {second, {}}};
  };
  on_two_ranks([&](ProcessGroup& group) {
    WholeRun whole(group);
    optim::AdamW optimizer(groups(whole, true));
    optimizer.set_learning_rates({0.25, 1.0 / 3});
    Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
    checkpointer.save(whole.run.state, whole.run.model.module(), optimizer);
    return std::string(checkpointer.finish() ? "" : "not written");
  });
  EXPECT_EQ(on_two_ranks([&](ProcessGroup& group) {
              WholeRun whole(group);
              optim::AdamW optimizer(groups(whole, true));
              Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
              checkpointer.restore(whole.run.model.module(), optimizer);
              return std::string(optimizer.learning_rates() == std::vector<double>{0.25, 1.0 / 3}
                                     ? "same"
                                     : "other");
            }),
            "same|same");
  expect_error(ErrorCode::kInvalid, "head.weight: in group 1 here, in group 0 in the checkpoint",
               [&](ProcessGroup& group) {
                 WholeRun whole(group);
                 optim::AdamW optimizer(groups(whole, false));
                 Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
                 checkpointer.restore(whole.run.model.module(), optimizer);
                 return std::string();
               });
}

TEST_F(RunPartsTest, a_state_with_a_flipped_bit_is_not_saved_and_every_rank_knows_whose) {
  expect_error(ErrorCode::kCorrupt, "rank 1: ", [&](ProcessGroup& group) {
    WholeRun whole(group);
    Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
    checkpointer.attach(whole.parts());
    whole.train(3);
    const auto parts = core_of(whole.run.optimizer).state_parts();
    const auto held =
        std::ranges::find_if(parts, [](const auto& part) { return part.elements.numel() > 0; });
    if (group.rank() == 1) *static_cast<std::uint32_t*>(held->elements.data_ptr()) ^= 1u << 20;
    checkpointer.save(whole.run.state, whole.run.model.module(), whole.run.optimizer);
    return std::string();
  });
  for (const auto& entry : fs::directory_iterator(path_))
    EXPECT_EQ(entry.path().filename().string().find("step-"), std::string::npos);
}

TEST_F(RunPartsTest, nothing_is_saved_while_the_average_is_swapped_in) {
  expect_error(ErrorCode::kInvalid, "swapped in", [&](ProcessGroup& group) {
    WholeRun whole(group);
    Checkpointer checkpointer(whole.run.group, {.folder = path_.string()});
    checkpointer.attach(whole.parts());
    whole.train(1);
    const auto swap = whole.average.swap_in();
    checkpointer.save(whole.run.state, whole.run.model.module(), whole.run.optimizer);
    return std::string();
  });
}

}  // namespace
}  // namespace paceline::train
