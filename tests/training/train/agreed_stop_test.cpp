// A training that is asked to stop at any moment and is continued later sees every sample once and
// ends bitwise equal to one that was not stopped.

#include "paceline/engine/collectives/group/agreed_stop.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/run_parts.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/shared_counter.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

using namespace std::chrono_literals;

constexpr int kEpochs = 6;

// The samples on which the ranks have trained: a line "epoch: indices" for each step, in one file
// for each rank.
class SampleLog {
 public:
  SampleLog(const FreshDirectory& directory, SmallRun& run)
      : file_(directory.file("samples." + std::to_string(run.group->rank())), std::ios::app) {
    run.seen = [this, &run](const data::Batch& batch) {
      file_ << run.state.epoch << ':';
      for (const auto index : batch.indices) file_ << ' ' << index;
      file_ << '\n' << std::flush;
    };
  }
  static std::string read(const FreshDirectory& directory) {
    std::ostringstream text;
    for (const char* rank : {"0", "1"}) {
      text << std::ifstream(directory.file(std::string("samples.") + rank)).rdbuf();
    }
    return text.str();
  }

 private:
  std::ofstream file_;
};

std::string bits(SmallRun& run) {
  const auto flat = run.flat().contiguous();
  const auto* bytes = static_cast<const char*>(flat.data_ptr());
  return std::to_string(
      std::hash<std::string_view>()({bytes, static_cast<std::size_t>(flat.numel()) * 4}));
}

// Continues from the newest checkpoint to the end, or until it is asked to stop. Returns "stopped
// at N" or the final bits.
std::string run_on(ProcessGroup& group, const FreshDirectory& directory,
                   harness::SharedCounter& steps) {
  // A signal before or after the training is not part of this test.
  for (const int signal : {SIGUSR1, SIGTERM}) ::signal(signal, SIG_IGN);
  SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
  const SampleLog log(directory, run);
  Checkpointer checkpointer(run.group, {.folder = directory.file("checkpoints")});
  if (const auto restored = checkpointer.restore(run.model.module(), run.optimizer)) {
    run.state = restored->state;
  }
  AgreedStop stop;
  const LoopHooks hooks{.after_step = [&](const StepReport&) { steps.add(); },
                        .stop_requested = [&] { return stop.requested(group); }};
  if (run.train({.epochs = kEpochs}, hooks) == LoopEnd::kDone) return bits(run);
  checkpointer.save(run.state, run.model.module(), run.optimizer);
  EXPECT_TRUE(checkpointer.finish());
  return "stopped at " + std::to_string(run.state.step);
}

// Returns both ranks' reports. The bits differ between the ranks: each adds its own last batch to
// the statistics of BatchNorm, which the next step takes from rank 0.
std::string answers(const std::vector<harness::ProcessResult>& results) {
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
  const bool stopped = results[0].report.starts_with("stopped");
  EXPECT_EQ(stopped, results[1].report.starts_with("stopped"));
  if (stopped) {
    EXPECT_EQ(results[0].report, results[1].report);
  }
  return results[0].report + "|" + results[1].report;
}

TEST(AgreedStopOfATraining, no_sample_is_lost_or_seen_twice_and_the_weights_have_the_same_bits) {
  const FreshDirectory straight;
  harness::SharedCounter unused;
  const std::string expected = answers(harness::run_process_ranks(
      2, [&](ProcessGroup& group) { return run_on(group, straight, unused); }));

  std::mt19937 random(harness::random_seed());
  const FreshDirectory interrupted;
  std::string answer;
  int num_stops = 0;
  for (int start = 0; start < 40 && (start == 0 || answer.starts_with("stopped")); ++start) {
    harness::SharedCounter steps;
    answer = answers(harness::run_process_ranks(
        2, [&](ProcessGroup& group) { return run_on(group, interrupted, steps); }, {},
        [&](const std::vector<pid_t>& pids) {
          // Both ranks count; the run may end before that many steps.
          try {
            steps.wait_for(1 + random() % 12, Deadline::after(2s));
          } catch (const std::runtime_error&) {
          }
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
          kill(pids[random() % 2], random() % 2 == 0 ? SIGUSR1 : SIGTERM);
        }));
    num_stops += answer.starts_with("stopped") ? 1 : 0;
  }
  EXPECT_EQ(answer, expected);
  EXPECT_GE(num_stops, 2);
  EXPECT_EQ(SampleLog::read(interrupted), SampleLog::read(straight));
}

TEST(AgreedStopOfATraining, at_the_last_step_of_all_there_is_nothing_to_continue) {
  const auto results = harness::run_process_ranks(2, [](ProcessGroup& group) {
    SmallRun run(std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    const auto end = run.train({.epochs = 2, .max_steps = 3},
                               {.stop_requested = [&] { return run.state.step == 3; }});
    EXPECT_EQ(end, LoopEnd::kDone);
    EXPECT_EQ(run.state.step, 3);
    // Without a limit the run is done after the last step of the last epoch; it is stopped at any
    // earlier one.
    const auto stop_at = [&](std::int64_t step) {
      return LoopHooks{.stop_requested = [&run, step] { return run.state.step == step; }};
    };
    EXPECT_EQ(run.train({.epochs = 2}, stop_at(5)), LoopEnd::kStopped);
    EXPECT_EQ(run.train({.epochs = 2}, stop_at(10)), LoopEnd::kDone);
    EXPECT_EQ(run.state, (TrainingState{.epoch = 2, .step = 10, .consumed = 0, .seed = 3}));
    return std::string();
  });
  answers(results);
}

}  // namespace
}  // namespace paceline::train
