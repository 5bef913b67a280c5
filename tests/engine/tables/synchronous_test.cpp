// Synchronous tables: the bits of one process that takes one step for all workers.

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "tests/engine/tables/stepped_process.h"
#include "tests/engine/tables/table_job.h"

namespace paceline::tables::synchronous_tests {
namespace {

using namespace testing_job;

constexpr std::uint32_t kWidth = 4;
constexpr int kWorkers = 3, kClocks = 12, kIds = 20;

RowOptions options_of(const RowOptimizer& optimizer, const Consistency& consistency) {
  return {.width = kWidth, .optimizer = optimizer, .consistency = consistency, .capacity = 1'000};
}

struct Push {
  std::vector<Id> ids;
  std::vector<float> gradients;
};
Push push_of(int worker, int clock, int part) {
  std::mt19937 random(worker * 1'000 + clock * 10 + part);
  Push push;
  for (int i = 0; i < 6; ++i) {
    push.ids.push_back(static_cast<Id>(random() % kIds));
    for (std::uint32_t j = 0; j < kWidth; ++j)
      push.gradients.push_back(std::uniform_real_distribution<float>(-1, 1)(random));
  }
  return push;
}
std::vector<Id> all_ids() {
  std::vector<Id> ids(kIds);
  for (int i = 0; i < kIds; ++i) ids[i] = i;
  return ids;
}

// The different ids of a push, each with the sum of its gradients.
void append_sums(const Push& push, Push& to) {
  RowBatch batch;
  batch.assign(push.ids);
  std::vector<float> sum;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const float* gradient = batch.gradient(i, push.gradients, kWidth, sum);
    to.ids.push_back(batch.id(i));
    to.gradients.insert(to.gradients.end(), gradient, gradient + kWidth);
  }
}

// One process: the gradients of a clock are added for each worker, then over the workers. The tree
// of three workers is their order.
std::vector<float> reference(const RowOptimizer& optimizer) {
  const Memories memories(options_of(optimizer, Consistency::asynchronous()));
  const auto rows = open(memories.first(), "one");
  for (int clock = 0; clock < kClocks; ++clock) {
    Push all;
    for (int worker = 0; worker < kWorkers; ++worker) {
      Push own;
      for (int part = 0; part < 2; ++part) append_sums(push_of(worker, clock, part), own);
      append_sums(own, all);
    }
    rows->push(all.ids, all.gradients);
    rows->tick();
  }
  return pull(*rows, all_ids());
}

class Synchronous : public testing::TestWithParam<int> {
 protected:
  static RowOptimizer optimizer() {
    switch (GetParam()) {
      case 0:
        return SGD{.lr = 0.1};
      case 1:
        return Adam{.lr = 0.1};
      case 2:
        return Adagrad{.lr = 0.1};
      default:
        return RowAdagrad{.lr = 0.1};
    }
  }
};

TEST_P(Synchronous, WorkersHaveTheBitsOfOneProcess) {
  const Memories memories(options_of(optimizer(), Consistency::synchronous()));
  std::vector<std::unique_ptr<SharedRows>> all;
  for (int worker = kWorkers - 1; worker >= 0; --worker)  // the order of names counts, not of slots
    all.insert(all.begin(), open(memories.mapped(), "w" + std::to_string(worker)));
  std::vector<std::vector<float>> results(kWorkers);
  {
    std::vector<std::jthread> threads;
    threads.reserve(kWorkers);
    for (int worker = 0; worker < kWorkers; ++worker) {
      threads.emplace_back([&, worker] {
        SharedRows& rows = *all[worker];
        for (int clock = 0; clock < kClocks; ++clock) {
          const auto before = pull(rows, all_ids());
          for (int part = 0; part < 2; ++part) {
            const Push push = push_of(worker, clock, part);
            rows.push(push.ids, push.gradients);
          }
          EXPECT_EQ(pull(rows, all_ids()), before);  // nothing of this clock
          rows.tick();
        }
        results[worker] = pull(rows, all_ids());
        EXPECT_EQ(rows.stats().largest_staleness, 0U);
      });
    }
  }
  for (const auto& result : results) EXPECT_EQ(result, reference(optimizer()));
}
INSTANTIATE_TEST_SUITE_P(Optimizers, Synchronous, testing::Range(0, 4));

TEST(SynchronousStage, HoldsOnlySoManyRows) {
  RowOptions options = options_of(SGD{}, Consistency::synchronous());
  options.capacity = 4;
  const Memories memories(options);
  const auto rows = open(memories.first(), "a");
  std::vector<Id> ids(5);
  for (Id i = 0; i < 5; ++i) ids[i] = i;
  expect_error(ErrorCode::kSystem, {"5 different rows in one clock are more than the 4"},
               [&] { rows->push(ids, std::vector<float>(5 * kWidth, 1)); });
  rows->push(std::vector<Id>(9, 1), std::vector<float>(9 * kWidth, 1));
  rows->tick();
  EXPECT_EQ(rows->stats().rows, 1U);
}

// The memory is closed while the worker stages its push, and the worker gets no copy at first.
TEST(SynchronousStage, HasAPushOnceIfItIsRepeatedAfterAFailedMove) {
  RowOptions options = adding_rows(1);
  options.consistency = Consistency::synchronous();
  const Memories memories(options);
  bool fails = true;
  const auto rows =
      open(memories.first(), "w", {.next_memory = [&](const TableMemory&, MemoryPointer copy) {
             if (fails) throw Error(ErrorCode::kSystem, "no memory for the copy");
             return copy;
           }});
  const std::vector<float> one = {1};
  rows->push(std::vector<Id>{1}, one);
  expect_error(ErrorCode::kSystem, {"no memory for the copy"}, [&] {
    rows->push_written(std::vector<Id>{2}, [&](std::size_t, std::span<float> gradient) {
      gradient[0] = 1;
      memories.first()->header().state = static_cast<std::uint32_t>(TableState::kClosed);
    });
  });
  fails = false;
  rows->push(std::vector<Id>{2}, one);
  rows->push(std::vector<Id>{3}, one);
  rows->tick();
  EXPECT_EQ(pull(*rows, {1, 2, 3}), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(rows->stats().epoch, 2U);
}

// The worker that applies the stages is killed between two rows, or in the middle of one; another
// one continues, and each row has taken exactly one step.
class Applier : public testing::TestWithParam<int> {};

TEST_P(Applier, MayBeKilled) {
  RowOptions options = adding_rows(kWidth);
  options.consistency = Consistency::synchronous();
  const Memories memories(options);
  const std::vector<Id> ids = {1, 2, 3, 4};
  SteppedProcess victim([&] {
    const auto rows = open(memories.mapped(), "victim");
    SteppedProcess::pause_here();
    rows->push(ids, std::vector<float>(4 * kWidth, 1));
    rows->tick();
    return true;
  });
  const auto rows = open(memories.mapped(), "w");
  rows->push(ids, std::vector<float>(4 * kWidth, 10));
  memories.first()->worker(1).clock = 1;  // as if this worker waited in its tick
  const TableHeader& header = memories.first()->header();
  const auto position = static_cast<std::uint64_t>(GetParam() / 2);
  victim.step_while([&] { return header.apply_clock != 1; });
  const auto num_applied = [&] {  // each fourth part has one of the four rows
    std::uint64_t rows = 0;
    for (std::uint32_t i = kApplyParts / 4 - 1; i < kApplyParts; i += kApplyParts / 4)
      rows += header.parts[i].rows == 0 ? 0 : 1;
    return rows;
  };
  victim.step_while([&] { return num_applied() != position; });
  ASSERT_EQ(num_applied(), position);
  if (GetParam() % 2 == 1) {
    victim.step_while([&] {
      return memories.first()->slot(slot_of(ids[position])).lock == 0 && num_applied() == position;
    });
  }
  victim.kill_now();
  const auto second = open(memories.mapped(), "second");  // must not get the victim's place yet
  memories.first()->worker(1).clock = 0;
  rows->tick();
  second->leave();
  EXPECT_EQ(pull(*rows, ids), std::vector<float>(4 * kWidth, 11));
}
INSTANTIATE_TEST_SUITE_P(Positions, Applier, testing::Range(0, 8));

// While a worker has one part, another one applies the others; then the first one is killed.
TEST(Appliers, ShareTheParts) {
  constexpr int kRows = 3 * kApplyParts;
  RowOptions options = adding_rows(kWidth);
  options.consistency = Consistency::synchronous();
  const Memories memories(options);
  std::vector<Id> ids(kRows);
  std::iota(ids.begin(), ids.end(), Id{1});
  SteppedProcess victim([&] {
    const auto rows = open(memories.mapped(), "victim");
    SteppedProcess::pause_here();
    rows->push(ids, std::vector<float>(kRows * kWidth, 1));
    rows->tick();
    return true;
  });
  const auto rows = open(memories.mapped(), "w");
  rows->push(ids, std::vector<float>(kRows * kWidth, 10));
  memories.first()->worker(1).clock = 1;  // as if this worker waited in its tick
  const TableHeader& header = memories.first()->header();
  victim.step_while([&] { return header.parts[0].rows != 2; });
  victim.step_while([&] { return memories.first()->slot(slot_of(ids[1])).lock != 0; });
  ASSERT_EQ(header.parts[0].rows, 2U);
  memories.first()->worker(1).clock = 0;
  const auto are_others_complete = [&] {
    return std::all_of(header.parts.begin() + 1, header.parts.end(),
                       [](const ApplyPart& part) { return part.rows == ApplyPart::kComplete; });
  };
  std::jthread other([&] { rows->tick(); });
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (!are_others_complete() && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(are_others_complete());
  EXPECT_EQ(header.parts[0].rows, 2U);
  EXPECT_EQ(header.applied, 0U);
  victim.kill_now();
  other.join();
  EXPECT_EQ(header.applied, 1U);
  EXPECT_EQ(pull(*rows, ids), std::vector<float>(kRows * kWidth, 11));
}

}  // namespace
}  // namespace paceline::tables::synchronous_tests
