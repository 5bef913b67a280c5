// Runs with logical shards: the same model for any number of ranks, even while the number changes.

#include <cstdio>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/run_parts.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

using harness::Says;

constexpr std::int64_t kShards = 8;

std::shared_ptr<ProcessGroup> shared(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

std::string bits_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

// 50 samples in shards of 5: an epoch is a whole step and a step of 10 samples.
std::string train_whole(ProcessGroup& group) {
  at::set_num_threads(1);
  SmallRun run(shared(group), kShards);
  run.train({.epochs = 4});
  EXPECT_EQ(run.state.step, 8);
  return bits_of(run.flat());
}

std::string by_threads(int world, const harness::RanksOptions& options = {}) {
  std::string bits;
  harness::run_ranks_ok(
      world,
      [&](ProcessGroup& group) {
        std::string own = train_whole(group);
        if (group.rank() == 0) bits = std::move(own);
      },
      options);
  return bits;
}

TEST(LogicalShards, train_the_same_model_as_threads_and_over_tcp) {
  const std::string bits = by_threads(8);
  for (const int world : {1, 2, 4}) EXPECT_TRUE(by_threads(world) == bits) << world;
  EXPECT_TRUE(by_threads(2, {.transport = TransportKind::kTcp}) == bits);
}

// A separate suite that starts its processes first: LibTorch 2 computes no gradients in the child
// of a process that has computed some.
TEST(LogicalShardsOfProcesses, train_the_model_that_threads_train) {
  std::vector<std::string> digests;
  for (const int world : {1, 2, 4}) {
    const auto results = harness::run_process_ranks(world, [](ProcessGroup& group) {
      const std::string bits = train_whole(group);
      return std::to_string(std::hash<std::string>()(bits));
    });
    digests.push_back(results.front().report);
  }
  const std::string wanted = std::to_string(std::hash<std::string>()(by_threads(8)));
  for (const auto& digest : digests) EXPECT_EQ(digest, wanted);
}

// Each generation continues from the previous generation's checkpoint, also in the middle of an
// epoch.
TEST(LogicalShards, train_the_same_model_while_the_number_of_ranks_changes) {
  const std::string bits = by_threads(8);
  FreshDirectory directory;
  std::string resumed;
  std::int64_t until = 0;
  for (const auto& [world, steps] : {std::pair(8, 3), std::pair(2, 2), std::pair(4, 3)}) {
    until += steps;
    harness::run_ranks_ok(world, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      SmallRun run(shared(group), kShards);
      Checkpointer checkpointer(shared(group), {.folder = directory.path()});
      if (const auto restored = checkpointer.restore(run.model.module(), run.optimizer))
        run.state = restored->state;
      run.train({.epochs = 4, .max_steps = until});
      checkpointer.save(run.state, run.model.module(), run.optimizer);
      checkpointer.finish();
      const std::string own = bits_of(run.flat());
      if (group.rank() == 0) resumed = own;
    });
  }
  EXPECT_TRUE(resumed == bits);
}

TEST(LogicalShards, of_another_number_do_not_continue_a_run) {
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    SmallRun run(shared(group), 8);
    run.train({.max_steps = 1});
    SmallRun other(shared(group), 4);
    other.state = run.state;
    try {
      other.train({});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), Says("shards.of_the_run_differ", 1, 8, 4));
    }
  });
}

}  // namespace
}  // namespace paceline::train
