// Several workers at the same time, as threads, so that the thread sanitizer sees every access.

#include <thread>

#include "tests/engine/tables/table_job.h"

namespace paceline::tables {
namespace {

using namespace testing_job;

template <class Body>
void run_workers(int count, Body body) {
  std::vector<std::jthread> threads;
  threads.reserve(count);
  for (int worker = 0; worker < count; ++worker)
    threads.emplace_back([worker, &body] { body(worker); });
}

// Worker w adds 1 to element w of a row. So each element of a row counts the pushes of one worker,
// and a lost or doubled push shows.
TEST(Workers, AddUpWhatTheyPush) {
  constexpr int kWorkers = 4, kPushes = 300;
  const Memories memories(adding_rows(kWorkers));
  run_workers(kWorkers, [&](int worker) {
    const auto rows = open(memories.mapped(), "w" + std::to_string(worker));
    for (int push = 0; push < kPushes; ++push) {
      const std::vector<Id> ids = {1, 2, push, 1'000'000 + worker};
      std::vector<float> gradients(ids.size() * kWorkers);
      for (std::size_t i = 0; i < ids.size(); ++i) gradients[i * kWorkers + worker] = 1;
      rows->push(ids, gradients);
    }
  });
  const auto rows = open(memories.first(), "reader");
  for (Id id = 3; id < kPushes; ++id)
    ASSERT_EQ(pull(*rows, {id}), std::vector<float>(kWorkers, 1)) << id;
  for (Id id = 1; id < 3; ++id)
    EXPECT_EQ(pull(*rows, {id}), std::vector<float>(kWorkers, kPushes + 1));
  EXPECT_EQ(pull(*rows, {1'000'002}), (std::vector<float>{0, 0, kPushes, 0}));
  EXPECT_EQ(rows->stats().rows, static_cast<std::uint64_t>(kPushes + kWorkers));
}

// All elements of a row are equal at any time; a reader that mixed two steps would see others.
void read_while_rows_change(bool allow_torn) {
  constexpr std::uint32_t kWidth = 33;
  RowOptions options = adding_rows(kWidth);
  options.expire_after = 1;  // rows also go and come again, in the memory of others
  const Memories memories(options);
  std::atomic<bool> is_done = false;
  std::atomic<int> num_torn = 0;
  std::uint64_t counted = 0;
  {
    std::jthread reader([&] {
      const auto rows =
          open(memories.mapped(), "reader",
               {.torn_reads = allow_torn ? TornReads::kAllowed : TornReads::kRefused});
      while (!is_done) {
        for (Id id = 0; id < 8; ++id) {
          const auto values = pull(*rows, {id});
          if (values != std::vector<float>(kWidth, values[0])) ++num_torn;
        }
      }
      counted = rows->stats().torn_reads;
    });
    run_workers(2, [&](int worker) {
      const auto rows = open(memories.mapped(), "w" + std::to_string(worker));
      for (int push = 0; push < 1'000; ++push) {
        rows->push(std::vector<Id>{push % 8, 100 + push % 50}, std::vector<float>(2 * kWidth, 1));
        if (push % 16 == 0) rows->tick();
      }
    });
    is_done = true;
  }
  if (allow_torn) {
    EXPECT_LE(static_cast<std::uint64_t>(num_torn), counted);
  } else {
    EXPECT_EQ(num_torn, 0);
    EXPECT_EQ(counted, 0U);
  }
}

TEST(Workers, NeverSeeHalfARow) { read_while_rows_change(false); }
TEST(Workers, CountTheTornReadsThatTheyAllow) { read_while_rows_change(true); }

TEST(Workers, InsertTheSameRowsAtTheSameTime) {
  const Memories memories(adding_rows(2));
  run_workers(3, [&](int worker) {
    const auto rows = open(memories.mapped(), "w" + std::to_string(worker));
    for (Id first = 0; first < 3'000; first += 100) {
      std::vector<Id> ids(100);
      for (Id i = 0; i < 100; ++i) ids[i] = first + i;
      rows->push(ids, std::vector<float>(200, 1));
    }
  });
  const auto rows = open(memories.first(), "reader");
  EXPECT_EQ(rows->stats().rows, 3'000U);
  for (Id id = 0; id < 3'000; ++id) ASSERT_EQ(pull(*rows, {id}), (std::vector<float>{3, 3}));
}

}  // namespace
}  // namespace paceline::tables
