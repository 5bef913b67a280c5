#include "paceline/training/train/checkpoints/checkpointer.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/files/checkpoint/memory_checkpoint.h"
#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/run_parts.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

using harness::Says;
using testing::HasSubstr;

namespace fs = std::filesystem;

class CheckpointerTest : public testing::Test {
 protected:
  CheckpointerTest()
      : path_(fs::temp_directory_path() / ("checkpointer_test." + std::to_string(getpid()))) {}
  ~CheckpointerTest() override { fs::remove_all(path_); }

  // Runs `body` on two ranks, which are processes because threads would share the generator of
  // dropout. Returns their reports.
  std::string on_two_ranks(
      const std::function<std::string(SmallRun& run, Checkpointer& checkpointer)>& body) {
    const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
      SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
      Checkpointer checkpointer(run.group, {.folder = path_.string()});
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
    run.train({.epochs = 3, .max_steps = 8});  // ends in the middle of the second epoch
    EXPECT_TRUE(checkpointer.save(run.state, run.model.module(), run.optimizer));
    run.train({.epochs = 3, .max_steps = 10});  // steps that a crash would lose
    return std::string();
  });
  const auto resumed = on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    const auto state = checkpointer.restore(run.model.module(), run.optimizer);
    if (!state || state->state.step != 8) return std::string("no state");
    run.state = state->state;
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
    if (entry.path().extension() == ".bin" &&
        entry.path().string().find("00000004") != std::string::npos) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(2000);
      file.put('\x55');
    }
  }
  EXPECT_EQ(
      on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
        return std::to_string(checkpointer.restore(run.model.module(), run.optimizer)->state.step);
      }),
      "2|2");
}

// A bit flips on one rank, in each kind of state that a checkpoint has.
TEST_F(CheckpointerTest, a_damaged_run_is_not_saved) {
  using Place = std::function<void*(SmallRun & run, optim::ExponentialMovingAverage & average)>;
  const auto of_state = [](SmallRun& run, auto&) -> void* {
    for (const auto& part : core_of(run.optimizer).state_parts())
      if (part.elements.numel() > 3) return part.elements.data_ptr();
    return nullptr;
  };
  const std::vector<std::pair<std::string, Place>> rows = {
      {"head.weight", [](auto& run, auto&) { return run.model.module().head->weight.data_ptr(); }},
      {"exp_avg of parameter", of_state},
      {"buffer norm.running_mean",
       [](auto& run, auto&) { return run.model.module().norm->running_mean.data_ptr(); }},
      {"the average of parameter conv.weight",
       [](auto&, auto& average) { return average.state().front().second.data_ptr(); }}};
  for (const auto& [wanted, place] : rows) {
    const auto reports =
        on_two_ranks([&, &place = place](SmallRun& run, Checkpointer& checkpointer) {
          optim::ExponentialMovingAverage average(run.optimizer.parameters());
          checkpointer.attach({.average = &average, .reducer = &run.model.reducer()});
          run.train({.epochs = 1, .max_steps = 2});
          average.update();
          checkpointer.save(run.state, run.model.module(), run.optimizer);
          if (run.group->rank() == 1) static_cast<std::uint32_t*>(place(run, average))[3] ^= 4;
          run.state.step = 3;
          try {
            checkpointer.save(run.state, run.model.module(), run.optimizer);
          } catch (const DamagedState& error) {
            return std::string(error.what());
          }
          return std::string("saved");
        });
    EXPECT_NE(reports.find(wanted), std::string::npos) << reports;
    EXPECT_NE(reports.rfind(wanted), reports.find(wanted)) << "on both ranks: " << reports;
    EXPECT_FALSE(fs::exists(path_ / "step-00000003"));
    EXPECT_TRUE(fs::exists(path_ / "step-00000002"));
    fs::remove_all(path_);
  }
}

// The next step and pass must accept the restored state.
TEST_F(CheckpointerTest, a_restored_run_is_not_taken_for_a_damaged_one) {
  on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    optim::ExponentialMovingAverage average(run.optimizer.parameters());
    checkpointer.attach({.average = &average, .reducer = &run.model.reducer()});
    run.train({.epochs = 1, .max_steps = 2});
    average.update();
    checkpointer.save(run.state, run.model.module(), run.optimizer);
    run.train({.epochs = 1, .max_steps = 4});
    average.update();
    run.state = checkpointer.restore(run.model.module(), run.optimizer)->state;
    run.optimizer.verify_state();
    run.model.reducer().verify();
    run.train({.epochs = 1, .max_steps = 4});
    average.update();
    return std::string();
  });
}

TEST_F(CheckpointerTest,
       a_checkpoint_of_another_model_is_an_error_on_every_rank_that_shows_differences) {
  on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    checkpointer.save(run.state, run.model.module(), run.optimizer);
    return std::string();
  });
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
    Checkpointer checkpointer(shared, {.folder = path_.string()});
    torch::nn::Sequential other(torch::nn::Linear(2, 2));
    optim::Adam optimizer(other->parameters());
    checkpointer.restore(*other, optimizer);
    return std::string();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.threw);
    EXPECT_EQ(result.code, ErrorCode::kInvalid);
    EXPECT_THAT(result.report, Says("checkpoint.tensors_new", 8, "model.0.bias"));
    EXPECT_THAT(result.report, Says("checkpoint.tensors_unused", "model.conv.bias"));
  }
}

TEST_F(CheckpointerTest, the_learning_rate_is_part_of_the_run) {
  const auto straight = on_two_ranks([](SmallRun& run, Checkpointer&) {
    run.train({.epochs = 3, .max_steps = 8});
    run.optimizer.set_learning_rate(1.0 / 300);
    run.train({.epochs = 3});
    return bits(run);
  });
  on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    run.train({.epochs = 3, .max_steps = 8});
    run.optimizer.set_learning_rate(1.0 / 300);
    EXPECT_TRUE(checkpointer.save(run.state, run.model.module(), run.optimizer));
    return std::string();
  });
  const auto resumed = on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    run.state = checkpointer.restore(run.model.module(), run.optimizer)->state;
    EXPECT_EQ(run.optimizer.learning_rate(), 1.0 / 300);
    run.train({.epochs = 3});
    return bits(run);
  });
  EXPECT_EQ(resumed, straight);
}

TEST_F(CheckpointerTest, a_checkpoint_of_another_optimizer_is_refused_and_changes_nothing) {
  on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    checkpointer.save(run.state, run.model.module(), run.optimizer);
    return std::string();
  });
  EXPECT_EQ(on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
              run.train({.epochs = 1, .max_steps = 2});
              const auto before = bits(run);
              optim::AdamW other(run.model->parameters(), {.lr = 0.5});
              try {
                checkpointer.restore(run.model.module(), other);
                return std::string("taken");
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::kInvalid) << error.what();
              }
              EXPECT_EQ(other.learning_rate(), 0.5);
              return std::string(bits(run) == before ? "refused" : "changed");
            }),
            "refused|refused");
}

class MemoryCheckpointerTest : public CheckpointerTest {
 protected:
  ~MemoryCheckpointerTest() override { fs::remove(memory()); }
  std::string memory() const { return path_.string() + ".memory"; }

  std::string on_two_ranks_with_memory(
      const std::function<std::string(SmallRun& run, Checkpointer& checkpointer)>& body) {
    const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
      SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
      Checkpointer checkpointer(run.group, {.folder = path_.string(), .memory = memory()});
      return body(run, checkpointer);
    });
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
    return results[0].report + "|" + results[1].report;
  }

  // Saves checkpoints of these steps in memory and on the disk.
  void leave(std::int64_t in_memory, std::int64_t on_disk) {
    on_two_ranks_with_memory([&](SmallRun& run, Checkpointer& checkpointer) {
      for (std::int64_t step = 1; step <= std::max(in_memory, on_disk); ++step) {
        run.train({.epochs = 3, .max_steps = step});
        if (step == in_memory) {
          EXPECT_TRUE(checkpointer.save_to_memory(run.state, run.model.module(), run.optimizer));
        }
        if (step == on_disk) checkpointer.save(run.state, run.model.module(), run.optimizer);
      }
      EXPECT_TRUE(checkpointer.finish());
      return std::string();
    });
  }

  std::string restored() {
    return on_two_ranks_with_memory([](SmallRun& run, Checkpointer& checkpointer) {
      const auto found = checkpointer.restore(run.model.module(), run.optimizer);
      if (!found) return std::string("nothing");
      return std::to_string(found->state.step) + (found->from_memory ? " memory" : " disk");
    });
  }
};

TEST_F(MemoryCheckpointerTest, a_run_continued_from_memory_ends_with_the_same_bits) {
  const auto straight = on_two_ranks([](SmallRun& run, Checkpointer&) {
    run.train({.epochs = 3});
    return bits(run);
  });
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    Checkpointer checkpointer(run.group, {.folder = path_.string(), .memory = memory()});
    LoopHooks hooks;
    hooks.after_step = [&](const StepReport& report) {
      if (report.state.step % 3 == 0) {
        checkpointer.save_to_memory(run.state, run.model.module(), run.optimizer);
      }
      if (report.state.step == 8) raise(SIGKILL);  // no destructor runs
    };
    run.train({.epochs = 3}, hooks);
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.signal, SIGKILL) << result.report;
  const auto resumed = on_two_ranks_with_memory([](SmallRun& run, Checkpointer& checkpointer) {
    const auto found = checkpointer.restore(run.model.module(), run.optimizer);
    if (!found || found->state.step != 6 || !found->from_memory) return std::string("not so");
    run.state = found->state;
    run.train({.epochs = 3});
    return bits(run);
  });
  EXPECT_EQ(resumed, straight);
}

// Here rank 0 of the group does not have LOCAL_RANK 0.
TEST_F(MemoryCheckpointerTest, rank_0s_buffers_are_kept) {
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& world) {
    SmallRun run(world.split(0, -world.rank()));
    Checkpointer checkpointer(run.group, {.folder = path_.string(), .memory = memory()});
    run.train({.epochs = 1, .max_steps = 2});
    const at::Tensor mean = run.model.module().norm->running_mean;
    mean.add_(run.group->rank());  // as after a forward pass without a backward pass
    const auto means = all_gather(*run.group, mean);
    EXPECT_FALSE(at::equal(means[0], means[1]));
    EXPECT_TRUE(checkpointer.save_to_memory(run.state, run.model.module(), run.optimizer));
    EXPECT_TRUE(at::equal(mean, means[static_cast<std::size_t>(run.group->rank())]));
    const auto found = checkpointer.restore(run.model.module(), run.optimizer);
    EXPECT_TRUE(found && found->from_memory);
    EXPECT_TRUE(at::equal(mean, means[0]));
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

TEST_F(MemoryCheckpointerTest, the_newest_of_memory_and_disk_is_chosen_on_all_ranks) {
  EXPECT_EQ(restored(), "nothing|nothing");
  leave(2, 4);
  EXPECT_EQ(restored(), "4 disk|4 disk");
  leave(5, 3);
  EXPECT_EQ(restored(), "5 memory|5 memory");
  leave(6, 6);
  EXPECT_EQ(restored(), "6 memory|6 memory");
}

TEST_F(MemoryCheckpointerTest, damaged_checkpoints_are_passed_over) {
  leave(2, 4);
  const auto damage = [](const fs::path& file, std::streamoff offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(offset);
    stream.put('\x55');
  };
  damage(path_ / "step-00000004" / "boxes-00001-of-00002.bin", 2000);
  EXPECT_EQ(restored(), "2 memory|2 memory");
  damage(memory(), 4096 + 2000);
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    Checkpointer(run.group, {.folder = path_.string(), .memory = memory()})
        .restore(run.model.module(), run.optimizer);
    return std::string();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.threw);
    EXPECT_EQ(result.code, ErrorCode::kCorrupt);
    EXPECT_THAT(result.report, Says("checkpoint.sum_differs"));
  }
}

TEST_F(MemoryCheckpointerTest, memory_in_use_is_an_error_on_every_rank) {
  MemoryCheckpoint other(memory());
  other.lock();
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    Checkpointer checkpointer(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}),
                              {.folder = path_.string(), .memory = memory()});
    return std::string();
  });
  for (const auto& result : results) EXPECT_TRUE(result.threw) << result.report;
}

TEST_F(CheckpointerTest, a_disk_that_refuses_is_told_on_every_rank_and_training_goes_on) {
  EXPECT_EQ(on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
              std::string answers;
              const auto save = [&] {
                run.train({.epochs = 1, .max_steps = run.state.step + 1});
                checkpointer.save(run.state, run.model.module(), run.optimizer);
                answers += checkpointer.finish() ? "+" : "-";
              };
              save();
              // A limit that also applies to root.
              const rlimit none{0, RLIM_INFINITY};
              signal(SIGXFSZ, SIG_IGN);
              setrlimit(RLIMIT_FSIZE, &none);
              save();
              const rlimit any{RLIM_INFINITY, RLIM_INFINITY};
              setrlimit(RLIMIT_FSIZE, &any);
              save();
              return answers;
            }),
            "+-+|+-+");
}

TEST_F(CheckpointerTest, a_writer_that_another_one_has_followed_is_an_error_on_every_rank) {
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    Checkpointer checkpointer(run.group, {.folder = path_.string()});
    if (group.rank() == 0) fs::rename(path_ / ".writer-00000001", path_ / ".writer-00000002");
    checkpointer.save(run.state, run.model.module(), run.optimizer);
    checkpointer.finish();
    return std::string("saved");
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.threw);
    EXPECT_EQ(result.code, ErrorCode::kAborted);
    EXPECT_THAT(result.report, Says("checkpoint.taken_over"));
  }
}

TEST_F(CheckpointerTest, a_checkpoint_that_is_of_no_training_is_an_error_on_every_rank) {
  on_two_ranks([](SmallRun& run, Checkpointer& checkpointer) {
    checkpointer.save(run.state, run.model.module(), run.optimizer);
    return std::string();
  });
  {
    CheckpointDirectory directory(path_.string());
    const std::int64_t step = directory.list().back();
    Manifest manifest = directory.read_manifest(step);
    manifest.metadata.clear();
    directory.save_files(step, [&](const std::string& folder) {
      for (const ManifestFile& file : manifest.files)
        fs::copy(fs::path(directory.folder_of(step)) / file.name, fs::path(folder) / file.name);
      return manifest;
    });
  }
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    Checkpointer checkpointer(run.group, {.folder = path_.string()});
    checkpointer.restore(run.model.module(), run.optimizer);
    return std::string();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.threw);
    EXPECT_EQ(result.code, ErrorCode::kInvalid);
    EXPECT_THAT(result.report, Says("checkpoint.not_of_a_run"));
  }
}

TEST_F(CheckpointerTest, a_folder_in_use_is_an_error_on_every_rank) {
  const CheckpointDirectory other(path_.string());
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    Checkpointer checkpointer(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}),
                              {.folder = path_.string()});
    return std::string();
  });
  for (const auto& result : results) EXPECT_TRUE(result.threw) << result.report;
}

TEST_F(CheckpointerTest, a_call_on_one_rank_only_is_named_on_every_rank) {
  using Call = std::function<void(SmallRun & run, Checkpointer & checkpointer)>;
  const std::multimap<std::string, Call> calls = {
      {"begin", [](SmallRun& run, auto& own) { own.begin(run.model.module(), run.optimizer, 1); }},
      {"begin",
       [](SmallRun& /*run*/, auto& own) {
         own.attach("model", std::make_shared<torch::nn::LinearImpl>(1, 1));
         own.begin();
       }},
      {"save", [](SmallRun& run, auto& own) { own.save({}, run.model.module(), run.optimizer); }},
      {"restore", [](SmallRun& run, auto& own) { own.restore(run.model.module(), run.optimizer); }},
      {"finish", [](SmallRun& /*run*/, auto& own) { own.finish(); }}};
  for (const auto& [name, call] : calls) {
    const auto results = harness::run_process_ranks(2, [&, make = call](ProcessGroup& group) {
      SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
      Checkpointer checkpointer(run.group, {.folder = path_.string()});
      if (group.rank() == 0) make(run, checkpointer);
      group.barrier();
      return std::string();
    });
    for (const auto& result : results) {
      EXPECT_THAT(result.report,
                  HasSubstr("so every rank must call train::Checkpointer::" + name + "()"));
    }
  }
}

}  // namespace
}  // namespace paceline::train
