// Histories of one row are linearizable: there is an order of all pushes and pulls, in which each
// takes effect at one moment between its begin and its end, that explains what every pull returned.
// The checker is Wing and Gong's search (1993) with a memory of what it has tried.

#include <algorithm>
#include <random>
#include <thread>
#include <unordered_set>

#include "tests/engine/tables/table_job.h"

namespace paceline::tables::linearizable_tests {
namespace {

using namespace testing_job;

// An operation on the row. A push adds its own power of two, so the row's value is the set of the
// pushes that it holds.
struct Operation {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t added = 0;  // 0: a pull
  std::uint64_t read = 0;   // of a pull
};
using History = std::vector<Operation>;  // at most 64

class Search {
 public:
  explicit Search(const History& history) : history_(history) {}
  bool finds_an_order() { return order(0, 0); }

 private:
  // Whether the operations that are not `done` can follow in some order.
  bool order(std::uint64_t done, std::uint64_t value) {
    if (done + 1 == std::uint64_t{1} << history_.size()) return true;
    if (!tried_.insert(done).second) return false;  // the value follows from `done`
    std::uint64_t first_end = ~std::uint64_t{0};
    for (std::size_t i = 0; i < history_.size(); ++i)
      if (!(done >> i & 1)) first_end = std::min(first_end, history_[i].end);
    for (std::size_t i = 0; i < history_.size(); ++i) {
      const Operation& operation = history_[i];
      // An operation can be next if no other remaining one ended before it began.
      if (done >> i & 1 || operation.begin > first_end) continue;
      if (operation.added == 0 && operation.read != value) continue;
      if (order(done | std::uint64_t{1} << i, value | operation.added)) return true;
    }
    return false;
  }

  const History& history_;
  std::unordered_set<std::uint64_t> tried_;
};

bool is_linearizable(const History& history) { return Search(history).finds_an_order(); }

TEST(Linearizable, TheCheckerKnowsGoodHistoriesFromBadOnes) {
  EXPECT_TRUE(is_linearizable({{1, 2, 1, 0}, {3, 4, 0, 1}}));
  EXPECT_FALSE(is_linearizable({{1, 2, 1, 0}, {3, 4, 0, 0}}));  // an old value
  EXPECT_TRUE(is_linearizable({{1, 5, 1, 0}, {2, 3, 0, 0}, {4, 6, 0, 1}}));
  EXPECT_FALSE(is_linearizable({{1, 9, 1, 0}, {2, 3, 0, 1}, {4, 6, 0, 0}}));  // back in time
  EXPECT_FALSE(is_linearizable({{1, 9, 1, 0}, {1, 9, 2, 0}, {2, 3, 0, 1}, {2, 3, 0, 2}}));
  EXPECT_FALSE(is_linearizable({{5, 6, 1, 0}, {1, 2, 0, 1}}));  // before its push began
}

// Three workers push and pull the same row. Their pulls must agree on an order of the pushes.
TEST(Linearizable, HistoriesOfARow) {
  constexpr int kHistories = 300, kWorkers = 3, kPushes = 7, kOperations = 20;
  static_assert(kWorkers * kOperations < 64 && kWorkers * kPushes < 24);  // exact in float32
  const Memories memories(adding_rows(2));
  std::vector<std::unique_ptr<SharedRows>> workers;
  for (int w = 0; w < kWorkers; ++w)
    workers.push_back(open(memories.mapped(), "w" + std::to_string(w)));
  int overlaps = 0;
  for (int number = 0; number < kHistories; ++number) {
    const std::vector<Id> id = {number};
    std::atomic<std::uint64_t> time = 0;
    std::atomic<int> ready = 0;
    std::vector<History> histories(kWorkers);
    {
      std::vector<std::jthread> threads;
      for (int w = 0; w < kWorkers; ++w) {
        threads.emplace_back([&, w] {
          std::mt19937 random(number * kWorkers + w);
          ++ready;
          while (ready < kWorkers) std::this_thread::yield();
          int pushes = 0;
          for (int i = 0; i < kOperations; ++i) {
            Operation operation{.begin = ++time};
            // On a busy core the others otherwise run only between operations.
            if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(1));
            if (pushes < kPushes && random() % 2 == 0) {
              operation.added = std::uint64_t{1} << (w * kPushes + pushes++);
              const auto value = static_cast<float>(operation.added);
              workers[w]->push(id, std::vector<float>{value, value});
            } else {
              const auto values = pull(*workers[w], id);
              EXPECT_EQ(values[0], values[1]);
              operation.read = static_cast<std::uint64_t>(values[0]);
            }
            operation.end = ++time;
            histories[w].push_back(operation);
          }
        });
      }
    }
    History all;
    for (const History& history : histories) all.insert(all.end(), history.begin(), history.end());
    for (const Operation& a : all)
      overlaps += static_cast<int>(std::count_if(all.begin(), all.end(), [&](const Operation& b) {
        return a.begin < b.begin && b.begin < a.end;
      }));
    ASSERT_TRUE(is_linearizable(all)) << "history " << number;
  }
  EXPECT_GT(overlaps, 0);
}

}  // namespace
}  // namespace paceline::tables::linearizable_tests
