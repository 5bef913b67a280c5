// Cuts of tables: what they contain, and tables that are restored from them.

#include <atomic>
#include <numeric>
#include <thread>

#include "paceline/engine/tables/host/row_update.h"

#include "tests/engine/tables/table_job.h"

namespace paceline::tables::cut_tests {
namespace {

using namespace testing_job;

constexpr std::uint32_t kWidth = 3;

RowOptions options_of(const RowOptimizer& optimizer) {
  return {.width = kWidth, .optimizer = optimizer, .capacity = 1'000, .seed = 8};
}

std::vector<Id> some_ids() {
  std::vector<Id> ids;
  for (Id i = -20; i < 80; ++i) ids.push_back(i * 12'345'678'901);
  return ids;
}

void push_some(Rows& rows, int first, int last) {
  const auto ids = some_ids();
  for (int i = first; i < last; ++i)
    rows.push(ids, std::vector<float>(ids.size() * kWidth, 0.25F * static_cast<float>(i % 3 + 1)));
}

class Cut : public testing::TestWithParam<int> {
 protected:
  static RowOptimizer optimizer() {
    switch (GetParam()) {
      case 0:
        return SGD{.lr = 0.5, .momentum = 0.5};
      case 1:
        return Adam{};
      case 2:
        return Adagrad{};
      default:
        return RowAdagrad{};
    }
  }
};

// A table that is restored continues with the bits of one that was never saved: rows, state of the
// optimizer, learning rate.
TEST_P(Cut, ContinuesWithTheSameBits) {
  const Memories whole(options_of(optimizer())), second(options_of(optimizer()));
  const auto rows = open(whole.first(), "a");
  rows->set_lr(0.125);
  push_some(*rows, 0, 5);
  const TableCut cut = rows->cut();
  push_some(*rows, 5, 9);
  const auto restored = open(second.first(), "b");
  restored->restore(cut);
  EXPECT_EQ(restored->lr(), 0.125);
  EXPECT_EQ(restored->cut().rows, cut.rows);
  push_some(*restored, 5, 9);
  EXPECT_EQ(pull(*restored, some_ids()), pull(*rows, some_ids()));
  EXPECT_EQ(restored->stats().rows, rows->stats().rows);
}
INSTANTIATE_TEST_SUITE_P(Optimizers, Cut, testing::Range(0, 4));

TEST(Snapshot, HasTheRowsOfItsMoment) {
  const Memories memories(options_of(Adagrad{}));
  const auto rows = open(memories.first(), "a");
  push_some(*rows, 0, 3);
  std::vector<Id> ids = some_ids();
  ids.push_back(7);  // has no row
  const auto before = pull(*rows, ids);
  const TableSnapshot snapshot = rows->snapshot();
  push_some(*rows, 3, 5);
  std::vector<float> values(ids.size() * kWidth);
  snapshot.pull(ids, values);
  EXPECT_EQ(values, before);
  EXPECT_NE(pull(*rows, ids), before);
  EXPECT_EQ(snapshot.num_rows(), ids.size() - 1);
  EXPECT_EQ(snapshot.width(), kWidth);
  expect_error(ErrorCode::kInvalid, {"101 ids of width 3 need 303 floats, not 1"},
               [&] { snapshot.pull(ids, std::span(values).first(1)); });
}

// Row k + 1 is pushed after row k, so at every moment its number of pushes is that of row k, or one
// less. Pulls one after another would not see that.
TEST(Snapshot, IsOneMomentWhileWorkersPush) {
  constexpr Id kRows = 2'000;
  const Memories memories(adding_rows(1));
  const auto rows = open(memories.first(), "a");
  std::vector<Id> ids(kRows);
  std::iota(ids.begin(), ids.end(), Id{0});
  std::atomic<bool> stops = false;
  std::atomic<std::uint64_t> pushes = 0;
  std::jthread writer([&] {
    const auto own = open(memories.mapped(), "writer");
    const std::vector<float> ones(kRows, 1);
    for (; !stops; ++pushes) own->push(ids, ones);
  });
  std::vector<float> values(kRows);
  std::uint64_t before = 0;
  for (int i = 0; i < 50; ++i) {
    const TableSnapshot snapshot = rows->snapshot();
    snapshot.pull(ids, values);
    for (Id k = 0; k + 1 < kRows; ++k) {
      const float less = values[k] - values[k + 1];
      ASSERT_TRUE(less == 0 || less == 1) << "row " << k << ": " << values[k] << values[k + 1];
    }
    ASSERT_LE(values[0] - values[kRows - 1], 1);
    while (pushes == before && !stops) std::this_thread::yield();  // the writer goes on
    before = pushes;
  }
  stops = true;
}

TEST(Cuts, CanBeDividedAmongTables) {
  const Memories whole(options_of(Adagrad{}));
  const auto rows = open(whole.first(), "a");
  push_some(*rows, 0, 3);
  const TableCut cut = rows->cut();
  for (const std::uint32_t num_tables : {1U, 2U, 3U}) {
    std::uint64_t restored = 0;
    for (std::uint32_t i = 0; i < num_tables; ++i) {
      const Memories part(options_of(Adagrad{}));
      const auto some = open(part.first(), "b");
      some->restore_some(cut, [&](Id id) { return slot_of(id) % num_tables == i; });
      restored += some->stats().rows;
      for (const Id id : some_ids()) {
        if (slot_of(id) % num_tables != i) continue;
        EXPECT_EQ(pull(*some, {id}), pull(*rows, {id}));
      }
    }
    EXPECT_EQ(restored, cut.ids.size());
  }
}

TEST(Cuts, KeepSightingsAndAges) {
  RowOptions options = adding_rows(1);
  options.admit_after = 2;
  options.expire_after = 10;
  const Memories whole(options), second(options);
  const auto rows = open(whole.first(), "a");
  const auto push_one = [](Rows& to, Id id) {
    to.push(std::vector<Id>{id}, std::vector<float>{1});
  };
  push_one(*rows, 1);
  push_one(*rows, 1);
  for (int tick = 0; tick < 8; ++tick) rows->tick();
  push_one(*rows, 2);
  const auto restored = open(second.first(), "b");
  restored->restore(rows->cut());
  EXPECT_EQ(restored->stats().rows, 1U);
  push_one(*restored, 2);  // its second sighting
  EXPECT_EQ(restored->stats().rows, 2U);
  for (int tick = 0; tick < 3; ++tick) restored->tick();
  EXPECT_EQ(pull(*restored, {1, 2}), (std::vector<float>{0, 1}));  // row 1 is 11 ticks old
}

// Ids that were only counted have no row; where the first push admits an id, their counts go.
TEST(Cuts, OfCandidatesCanBeLoadedWhereEveryPushAdmits) {
  RowOptions counting = adding_rows(1), admitting = adding_rows(1);
  counting.admit_after = 2;
  counting.capacity = admitting.capacity = 2;
  const Memories whole(counting), second(admitting);
  const auto rows = open(whole.first(), "a");
  const auto push_one = [](Rows& to, Id id) {
    to.push(std::vector<Id>{id}, std::vector<float>{1});
  };
  for (const Id id : {1, 2, 3, 4, 4}) push_one(*rows, id);
  const auto restored = open(second.first(), "b");
  restored->restore(rows->cut());
  EXPECT_EQ(restored->stats().rows, 1U);
  push_one(*restored, 1);
  EXPECT_EQ(restored->stats().rows, 2U);
  EXPECT_EQ(pull(*restored, {1, 2, 4}), (std::vector<float>{1, 0, 1}));
}

TEST(Cuts, KeepSessions) {
  const Memories whole(adding_rows(1)), second(adding_rows(1));
  const auto rows = open(whole.first(), "a");
  const std::vector<Id> ids = {1, 2, 3};
  const std::vector<float> ones(3, 1);
  rows->push(ids, ones, 7);
  // As if the cut had been taken after two of the three rows.
  TableCut cut = rows->cut();
  ASSERT_EQ(cut.sessions.size(), 5U);
  cut.sessions[2] = 2;
  cut.rows[2] = 0;
  open(second.first(), "loader")->restore(cut);
  const auto again = open(second.first(), "a", {.session = rows->session()});
  EXPECT_EQ(again->sequence(), 7U);
  again->push(ids, ones, 7);
  EXPECT_EQ(pull(*again, ids), ones);
}

// Each worker adds 1 to its element of rows 0 to 9, one push after another. In any cut the session
// of a worker says how many of its pushes the rows hold.
TEST(Cuts, AreTakenAtOneMoment) {
  constexpr int kWorkers = 2;
  const Memories memories(adding_rows(kWorkers));
  std::vector<Id> ids(10);
  for (Id i = 0; i < 10; ++i) ids[i] = i;
  std::atomic<bool> is_done = false;
  std::vector<std::uint64_t> sessions(kWorkers);
  std::vector<std::unique_ptr<SharedRows>> all;
  for (int worker = 0; worker < kWorkers; ++worker) {
    all.push_back(open(memories.mapped(), "w" + std::to_string(worker)));
    sessions[worker] = all[worker]->session();
  }
  std::vector<std::jthread> threads;
  for (int worker = 0; worker < kWorkers; ++worker) {
    threads.emplace_back([&, worker] {
      std::vector<float> gradients(ids.size() * kWorkers);
      for (std::size_t i = 0; i < ids.size(); ++i) gradients[i * kWorkers + worker] = 1;
      while (!is_done) all[worker]->push(ids, gradients);
    });
  }
  const auto rows = open(memories.first(), "cutter");
  for (int round = 0; round < 40; ++round) {
    const TableCut cut = rows->cut();
    for (std::size_t s = 0; s < cut.sessions.size(); s += 5) {
      const int worker = static_cast<std::uint64_t>(cut.sessions[s]) == sessions[0] ? 0 : 1;
      const auto sequence = static_cast<float>(cut.sessions[s + 1]);
      for (std::size_t i = 0; i < cut.ids.size(); ++i) {
        const bool is_done_row = static_cast<std::int64_t>(cut.ids[i]) < cut.sessions[s + 2];
        EXPECT_EQ(cut.rows[i * kWorkers + worker], is_done_row ? sequence : sequence - 1);
      }
    }
  }
  is_done = true;
}

TEST(Cuts, MustFitTheTable) {
  const Memories whole(options_of(Adagrad{}));
  const auto rows = open(whole.first(), "a");
  push_some(*rows, 0, 1);
  const TableCut cut = rows->cut();
  const auto refused = [&](ErrorCode code, const std::string& words, const RowOptions& options) {
    const Memories other(options);
    const auto table = open(other.first(), "b");
    expect_error(code, {"worker b: restore: table 't'", words}, [&] { table->restore(cut); });
    EXPECT_EQ(table->stats().rows, 0U);
  };
  RowOptions options = options_of(RowAdagrad{});
  refused(ErrorCode::kInvalid, "the optimizer is RowAdagrad, but Adagrad in the saved table",
          options);
  options = options_of(Adagrad{});
  options.width = 4;
  refused(ErrorCode::kInvalid, "the width is 4, but 3 in the saved table", options);
  options = options_of(Adagrad{});
  options.seed = 9;
  refused(ErrorCode::kInvalid, "the seed is 9, but 8 in the saved table", options);
  options = options_of(Adagrad{});
  options.capacity = 99;
  refused(ErrorCode::kSystem, "has room for 99 rows and 99 ids, but the saved table has 100",
          options);
  expect_error(ErrorCode::kInvalid, {"has rows already; load it before the first push"},
               [&] { rows->restore(cut); });
}

}  // namespace
}  // namespace paceline::tables::cut_tests
