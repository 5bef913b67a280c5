#include "paceline/train/checkpointer.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/harness/process_ranks.h"
#include "tests/train/small_run.h"

namespace paceline::train {
namespace {

namespace fs = std::filesystem;

class CheckpointerTest : public testing::Test {
 protected:
  CheckpointerTest()
      : path_(fs::temp_directory_path() / ("checkpointer_test." + std::to_string(getpid()))) {}
  ~CheckpointerTest() override { fs::remove_all(path_); }

  // Runs `body` on two ranks, as processes: dropout draws from a generator that threads would
  // share. Returns their reports.
  std::string on_two_ranks(
      const std::function<std::string(SmallRun& run, Checkpointer& checkpointer)>& body) {
    const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
      SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
      Checkpointer checkpointer(run.group, path_.string());
      return body(run, checkpointer);
    });
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
    return results[0].report + "|" + results[1].report;
  }

  static std::string bits(SmallRun& run) {
    const auto flat = run.flat().contiguous();
    const auto* bytes = static_cast<const char*>(flat.data_ptr());
    return std::to_string(
        std::hash<std::string_view>()({bytes, static_cast<std::size_t>(flat.numel()) * 4}));
  }

  const fs::path path_;
};

TEST_F(CheckpointerTest, a_resumed_run_ends_with_the_bits_of_one_that_was_not_interrupted) {
  const auto straight = on_two_ranks([](SmallRun& run, Checkpointer&) {
    run.train({.epochs = 3});
    return bits(run);
  });
  on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    run.train({.epochs = 3, .max_steps = 8});  // in the middle of the second epoch
    EXPECT_TRUE(checkpointer.save(run.state, run.model.module(), run.optimizer));
    run.train({.epochs = 3, .max_steps = 10});  // what a crash would lose
    return std::string();
  });
  const auto resumed = on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    const auto state = checkpointer.restore(run.model.module(), run.optimizer);
    if (!state || state->step != 8) return std::string("no state");
    run.state = *state;
    run.train({.epochs = 3});
    return bits(run);
  });
  EXPECT_EQ(resumed, straight);
}

TEST_F(CheckpointerTest, an_empty_folder_restores_nothing) {
  EXPECT_EQ(on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
              return std::string(checkpointer.restore(run.model.module(), run.optimizer)
                                     ? "something"
                                     : "nothing");
            }),
            "nothing|nothing");
}

TEST_F(CheckpointerTest, a_damaged_newest_checkpoint_falls_back_to_the_one_before) {
  on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    for (const std::int64_t steps : {2, 4}) {
      run.train({.epochs = 1, .max_steps = steps});
      checkpointer.save(run.state, run.model.module(), run.optimizer);
    }
    return std::string();
  });
  for (const auto& entry : fs::recursive_directory_iterator(path_)) {
    if (entry.path().extension() == ".safetensors" &&
        entry.path().string().find("00000004") != std::string::npos) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(2000);
      file.put('\x55');
    }
  }
  EXPECT_EQ(on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
              return std::to_string(checkpointer.restore(run.model.module(), run.optimizer)->step);
            }),
            "2|2");
}

TEST_F(CheckpointerTest,
       a_checkpoint_of_another_model_is_an_error_on_every_rank_that_lists_the_differences) {
  on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    checkpointer.save(run.state, run.model.module(), run.optimizer);
    return std::string();
  });
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
    Checkpointer checkpointer(shared, path_.string());
    torch::nn::Sequential other(torch::nn::Linear(2, 2));
    optim::Adam optimizer(other->parameters(), {});
    checkpointer.restore(*other, optimizer);
    return std::string();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.threw);
    EXPECT_EQ(result.code, ErrorCode::kInvalid);
    EXPECT_NE(result.report.find("model.0.weight"), std::string::npos) << result.report;
    EXPECT_NE(result.report.find("model.conv.weight"), std::string::npos) << result.report;
  }
}

TEST_F(CheckpointerTest, a_folder_in_use_is_an_error_on_every_rank) {
  const CheckpointDirectory other(path_.string());
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    Checkpointer checkpointer(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), path_.string());
    return std::string();
  });
  for (const auto& result : results) EXPECT_TRUE(result.threw) << result.report;
}

}  // namespace
}  // namespace paceline::train
