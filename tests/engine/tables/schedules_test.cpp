// Seeded schedules: the real code of several workers, whose calls one thread makes in an order that
// a seed decides, beside a model that only counts. A seed that fails is printed and can be run
// alone:
//
//   PACELINE_SCHEDULES=10000 tables_test --gtest_filter='Schedules.*'
//   PACELINE_SCHEDULE_SEED=123 tables_test --gtest_filter='Schedules.*'

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>

#include "tests/engine/tables/table_job.h"

namespace paceline::tables::schedules_tests {
namespace {

using namespace testing_job;

constexpr int kWorkers = 3, kIds = 5;

long number_of(const char* variable, long otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atol(text);
}

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed)
      : random_(seed), bound_(pick_bound()), memories_(options()) {
    for (int w = 0; w < kWorkers; ++w) join(w);
  }

  void run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      const int w = below(kWorkers);
      switch (below(10)) {
        case 0:
        case 1:
        case 2:
          pull_some(w);
          break;
        case 3:
        case 4:
        case 5:
          push_some(w);
          break;
        case 6:
        case 7:
          tick(w);
          break;
        case 8:
          start_again(w);
          break;
        default:
          below(4) == 0 ? move_to_another_table() : leave_and_join(w);
      }
    }
    for (int w = 0; w < kWorkers; ++w) pull_some(w);
  }

 private:
  struct Worker {
    std::unique_ptr<SharedRows> rows;
    std::uint64_t clock = 0;
    std::vector<Id> last_push;
  };

  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  std::optional<std::uint32_t> pick_bound() {
    const int choice = below(4);
    if (choice == 0) return std::nullopt;
    return std::uint32_t{1} << (choice - 1);
  }
  RowOptions options() const {
    RowOptions options = adding_rows(kWorkers);
    options.capacity = 16;
    options.consistency = bound_ ? Consistency::bounded(*bound_) : Consistency::asynchronous();
    return options;
  }

  void join(int w, std::optional<std::uint64_t> session = {}) {
    Worker& worker = workers_[w];
    worker.rows = open(memories_.mapped(), "w" + std::to_string(w), {.session = session});
    worker.clock = worker.rows->stats().clock;
    if (!session) worker.last_push.clear();
    // The worker starts within the bound of all others.
    for (const Worker& other : workers_)
      if (other.rows && bound_) {
        EXPECT_LE(other.clock, worker.clock + *bound_);
        EXPECT_LE(worker.clock, other.clock + *bound_);
      }
  }

  void pull_some(int w) {
    std::vector<Id> ids(1 + below(4));
    for (Id& id : ids) id = below(kIds);
    const auto values = pull(*workers_[w].rows, ids);
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (int other = 0; other < kWorkers; ++other)
        EXPECT_EQ(values[i * kWorkers + other], static_cast<float>(sums_[ids[i]][other]))
            << "row " << ids[i];
    if (bound_) {
      EXPECT_LE(workers_[w].rows->stats().largest_staleness, *bound_);
    }
  }

  void push_some(int w) {
    std::vector<Id> ids(1 + below(4));
    for (Id& id : ids) {
      id = below(kIds);
      ++sums_[id][w];
    }
    workers_[w].rows->push(ids, gradients_of(w, ids.size()));
    workers_[w].last_push = ids;
  }
  static std::vector<float> gradients_of(int w, std::size_t ids) {
    std::vector<float> gradients(ids * kWorkers);
    for (std::size_t i = 0; i < ids; ++i) gradients[i * kWorkers + w] = 1;
    return gradients;
  }

  // Does nothing if the tick would wait, because there is only one thread.
  void tick(int w) {
    Worker& worker = workers_[w];
    for (const Worker& other : workers_)
      if (bound_ && &other != &worker && worker.clock + 1 > other.clock + *bound_) return;
    worker.rows->tick();
    ++worker.clock;
    EXPECT_EQ(worker.rows->stats().clock, worker.clock);
  }

  // A worker that died repeats its last push, which was applied.
  void start_again(int w) {
    Worker& worker = workers_[w];
    const std::uint64_t session = worker.rows->session(), sequence = worker.rows->sequence();
    worker.rows.reset();
    join(w, session);
    if (worker.last_push.empty()) return;
    worker.rows->push(worker.last_push, gradients_of(w, worker.last_push.size()), sequence);
    EXPECT_EQ(worker.rows->stats().duplicate_pushes, 1U);
  }

  void leave_and_join(int w) {
    workers_[w].rows.reset();
    join(w);
  }

  // A cut is restored into another table, in which all go on.
  void move_to_another_table() {
    const TableCut cut = workers_[below(kWorkers)].rows->cut();
    for (Worker& worker : workers_) worker.rows.reset();
    memories_ = Memories(options());
    for (int w = 0; w < kWorkers; ++w) {
      join(w);
      if (w == 0) workers_[w].rows->restore(cut);
    }
  }

  std::mt19937_64 random_;
  const std::optional<std::uint32_t> bound_;
  Memories memories_;
  Worker workers_[kWorkers];
  std::uint64_t sums_[kIds][kWorkers] = {};  // the model: what each row must hold
};

TEST(Schedules, KeepEveryPromiseForEverySeed) {
  const long only = number_of("PACELINE_SCHEDULE_SEED", -1);
  const long count = only >= 0 ? 1 : number_of("PACELINE_SCHEDULES", 500);
  for (long i = 0; i < count; ++i) {
    const auto seed = static_cast<std::uint64_t>(only >= 0 ? only : i);
    SCOPED_TRACE("PACELINE_SCHEDULE_SEED=" + std::to_string(seed));
    Schedule(seed).run(80);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace paceline::tables::schedules_tests
