// Workers that are killed at any moment of a push. Their rows are never half written, and a push
// that is repeated by a worker that takes over the session is applied exactly once.

#include <numeric>
#include <random>
#include <thread>

#include "paceline/engine/tables/host/row_store.h"
#include "paceline/engine/tables/host/table_clock.h"

#include "tests/engine/rpc/worker_process.h"
#include "tests/engine/tables/stepped_process.h"
#include "tests/engine/tables/table_job.h"
#include "tests/harness/random_seed.h"

namespace paceline::tables::killed_tests {
namespace {

using namespace testing_job;
using Process = rpc::testing_job::Process;

constexpr std::uint32_t kWidth = 6;

struct Progress {
  std::atomic<std::uint64_t> session, acknowledged;
};

std::vector<Id> ids_of(std::uint64_t push) {
  std::vector<Id> ids(8);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = i < 4 ? static_cast<Id>(i) : static_cast<Id>(push * 8 + i);  // old and new rows
  return ids;
}

// Pushes for ever; says what was acknowledged.
bool push_for_ever(const Memories& memories, Progress& progress) {
  const auto rows = open(memories.mapped(), "victim");
  progress.session = rows->session();
  for (std::uint64_t push = 1;; ++push) {
    const auto ids = ids_of(push);
    rows->push(ids, std::vector<float>(ids.size() * kWidth, 1), push);
    progress.acknowledged = push;
  }
}

// The first four rows were in all pushes: each must have the value of `done` or `done` + 1 pushes,
// the ones that come first in the batch not less.
void expect_whole_rows(Rows& rows, std::uint64_t done) {
  float before = static_cast<float>(done + 1);
  for (const Id id : ids_of(done + 1)) {
    const auto values = pull(rows, {id});
    ASSERT_EQ(values, std::vector<float>(kWidth, values[0])) << "row " << id << " is torn";
    const float least = id < 4 ? static_cast<float>(done) : 0;
    ASSERT_TRUE(values[0] == least || values[0] == least + 1) << values[0] << " after " << done;
    const float pushes = values[0] - least + static_cast<float>(done);
    ASSERT_LE(pushes, before) << "row " << id << " was changed before an earlier one";
    before = pushes;
  }
}

TEST(Killed, AtAnyMomentAPushIsAppliedExactlyOnceWhenItIsRepeated) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 60; ++round) {
    RowOptions options = adding_rows(kWidth);
    options.capacity = 1'000'000;
    const Memories memories(options);
    auto& progress = shared_with_children<Progress>();
    Process victim([&] { return push_for_ever(memories, progress); });
    while (progress.acknowledged == 0) std::this_thread::sleep_for(100us);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3'000));
    victim.end();
    const auto survivor = open(memories.mapped(), "survivor");
    const std::uint64_t done = progress.acknowledged;
    expect_whole_rows(*survivor, done);
    survivor->push(ids_of(0), std::vector<float>(8 * kWidth, 0));  // no lock is left behind
    const auto successor = open(memories.mapped(), "successor", {.session = progress.session});
    const std::uint64_t last = successor->sequence();
    ASSERT_TRUE(last == done || last == done + 1);
    // The acknowledged push again, and the one that may have been under way.
    successor->push(ids_of(done), std::vector<float>(8 * kWidth, 1), done);
    successor->push(ids_of(done + 1), std::vector<float>(8 * kWidth, 1), done + 1);
    for (const Id id : ids_of(done + 1)) {
      const float expected = id < 4 ? static_cast<float>(done + 1) : 1;
      ASSERT_EQ(pull(*survivor, {id}), std::vector<float>(kWidth, expected)) << "row " << id;
    }
    EXPECT_GE(successor->stats().duplicate_pushes, 1U);
  }
}

// The same at chosen instructions: everywhere between the first lock and the end of the push.
class Stepped : public testing::Test {
 protected:
  bool push_two() {
    const auto rows = open(memories_.mapped(), "victim");
    progress_.session = rows->session();
    rows->push(std::vector<Id>{1, 2}, std::vector<float>(2 * kWidth, 1));
    SteppedProcess::pause_here();
    rows->push(std::vector<Id>{1, 2, 3}, std::vector<float>(3 * kWidth, 1));
    progress_.acknowledged = 1;
    return true;
  }
  bool holds_lock(Id id) const { return memories_.first()->slot(slot_of(id)).lock != 0; }
  bool is_committed() const {
    return phase_of(memories_.first()->journal(0)) == JournalPhase::kCommitted;
  }
  void expect_repaired() const {
    const auto survivor = open(memories_.mapped(), "survivor");
    for (const Id id : {1, 2, 3}) {
      const auto values = pull(*survivor, {id});
      ASSERT_EQ(values, std::vector<float>(kWidth, values[0])) << "row " << id << " is torn";
    }
    const auto successor = open(memories_.mapped(), "successor", {.session = progress_.session});
    successor->push(std::vector<Id>{1, 2, 3}, std::vector<float>(3 * kWidth, 1), 2);
    ASSERT_EQ(pull(*successor, {1, 3}), [] {
      std::vector<float> values(2 * kWidth, 2);
      std::fill(values.begin() + kWidth, values.end(), 1);
      return values;
    }());
  }

  const Memories memories_{adding_rows(kWidth)};
  Progress& progress_ = shared_with_children<Progress>();
};

// Steps to the `which`-th moment of interest, and then `more` instructions.
class SteppedKill : public Stepped, public testing::WithParamInterface<int> {};

TEST_P(SteppedKill, LeavesWholeRows) {
  SteppedProcess victim([this] { return push_two(); });
  victim.step_while([&] { return !holds_lock(3); });
  ASSERT_TRUE(holds_lock(3)) << "the process ended before it took the lock of row 3";
  // Row 3 is new: its entry and data are allocated, and the chain changes.
  for (int i = 0; i < GetParam(); ++i)
    if (!holds_lock(3) || !victim.step()) break;
  victim.kill_now();
  expect_repaired();
}
INSTANTIATE_TEST_SUITE_P(Instructions, SteppedKill, testing::Range(0, 3000, 75));

// The copy of a committed row is short; kill at each 7th instruction of it. With the thread
// sanitizer it takes many times as many instructions.
#if defined(__SANITIZE_THREAD__)
constexpr int kStride = 701;
#else
constexpr int kStride = 7;
#endif

TEST_F(Stepped, KilledAtEachInstructionOfTheCopy) {
  for (int instructions = 0;; instructions += kStride) {
    const Memories memories(adding_rows(kWidth));
    SteppedProcess victim([&] {
      const auto rows = open(memories.mapped(), "victim");
      rows->push(std::vector<Id>{1}, std::vector<float>(kWidth, 1));
      SteppedProcess::pause_here();
      rows->push(std::vector<Id>{1}, std::vector<float>(kWidth, 1));
      return true;
    });
    const auto is_copying = [&] {
      return phase_of(memories.first()->journal(0)) == JournalPhase::kCommitted;
    };
    victim.step_while([&] { return !is_copying(); });
    int done = 0;
    while (done < instructions && is_copying() && victim.step()) ++done;
    const bool is_over = !is_copying();
    victim.kill_now();
    const auto survivor = open(memories.mapped(), "survivor");
    // Before the version of the row is odd, a reader still sees the row as it was.
    const auto values = pull(*survivor, {1});
    ASSERT_EQ(values, std::vector<float>(kWidth, values[0])) << instructions;
    ASSERT_TRUE(values[0] == 1 || values[0] == 2) << instructions;
    survivor->push(std::vector<Id>{1}, std::vector<float>(kWidth, 0));  // needs the lock
    ASSERT_EQ(pull(*survivor, {1}), std::vector<float>(kWidth, 2)) << instructions;
    if (is_over) break;
    EXPECT_EQ(survivor->stats().repaired_updates, 1U) << instructions;
  }
}

// ---- frozen workers

// Where the workers of a test find the memory after a take-over.
struct Successor {
  std::atomic<int> pid, descriptor;
};

SharedRowsOptions following(Successor& successor, IsLost is_lost) {
  return {.is_lost = std::move(is_lost),
          .next_memory = [&successor, kept = std::make_shared<MemoryPointer>()](
                             const TableMemory&, MemoryPointer copy) -> MemoryPointer {
            if (copy) {
              *kept = copy;
              successor.descriptor = copy->descriptor();
              successor.pid = getpid();
              return copy;
            }
            if (successor.pid == 0) return nullptr;
            const std::string path = "/proc/" + std::to_string(successor.pid) + "/fd/" +
                                     std::to_string(successor.descriptor);
            return TableMemory::of_file(Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC)));
          }};
}

class Frozen : public Stepped {
 protected:
  // A victim whose second push must fail because the others have given it up.
  bool push_and_be_refused() {
    const auto rows = open(memories_.mapped(), "victim", following(successor_, {}));
    rows->push(std::vector<Id>{1, 2}, std::vector<float>(2 * kWidth, 1));
    SteppedProcess::pause_here();
    try {
      rows->push(std::vector<Id>{1, 2}, std::vector<float>(2 * kWidth, 1));
    } catch (const Error& error) {
      return error.code() == ErrorCode::kPeerLost &&
             std::string(error.what()).find("dropped it") != std::string::npos;
    }
    return false;
  }
  static bool victim_is_lost(const std::string& worker) { return worker == "victim"; }

  Successor& successor_ = shared_with_children<Successor>();
};

TEST_F(Frozen, BeforeTheCommitItIsRevokedInPlace) {
  SteppedProcess victim([this] { return push_and_be_refused(); });
  victim.step_while([&] { return !holds_lock(1); });
  const auto survivor = open(memories_.mapped(), "survivor", following(successor_, victim_is_lost));
  survivor->push(std::vector<Id>{1}, std::vector<float>(kWidth, 10));
  EXPECT_EQ(survivor->stats().epoch, 1U);
  EXPECT_EQ(survivor->stats().evicted_workers, 1U);
  EXPECT_TRUE(victim.succeeds());
  EXPECT_EQ(pull(*survivor, {1, 2}), [] {
    std::vector<float> values(2 * kWidth, 11);
    std::fill(values.begin() + kWidth, values.end(), 1);
    return values;
  }());
}

TEST_F(Frozen, InTheMiddleOfARowTheTableMovesToNewMemory) {
  SteppedProcess victim([this] { return push_and_be_refused(); });
  victim.step_while([&] { return !is_committed(); });
  for (int i = 0; i < 30; ++i) victim.step();  // half of the row is written
  ASSERT_TRUE(is_committed());
  const auto survivor = open(memories_.mapped(), "survivor", following(successor_, victim_is_lost));
  const auto third = open(memories_.mapped(), "third", following(successor_, victim_is_lost));
  survivor->push(std::vector<Id>{1}, std::vector<float>(kWidth, 10));
  EXPECT_EQ(survivor->stats().epoch, 2U);
  // The change that was committed has been completed, and is not made twice.
  EXPECT_EQ(pull(*survivor, {1}), std::vector<float>(kWidth, 12));
  EXPECT_EQ(pull(*third, {1}), std::vector<float>(kWidth, 12));
  third->push(std::vector<Id>{1}, std::vector<float>(kWidth, 100));
  EXPECT_TRUE(victim.succeeds());  // it thaws, writes where nobody reads, and is refused
  EXPECT_EQ(pull(*survivor, {1}), std::vector<float>(kWidth, 112));
  EXPECT_EQ(pull(*survivor, {2}), std::vector<float>(kWidth, 1));
  EXPECT_EQ(third->stats().epoch, 2U);
  EXPECT_EQ(third->stats().evicted_workers, 1U);
}

// Opening a table with the session of the frozen worker moves the table; a worker that found the
// old memory follows.
TEST_F(Frozen, InTheMiddleOfARowItsSessionContinuesInNewMemory) {
  SteppedProcess victim([this] { return push_and_be_refused(); });
  victim.step_while([&] { return !is_committed(); });
  for (int i = 0; i < 30; ++i) victim.step();
  ASSERT_TRUE(is_committed());
  SharedRowsOptions options = following(successor_, victim_is_lost);
  options.session = memories_.first()->session(memories_.first()->worker(0).session).number;
  const auto next = open(memories_.mapped(), "next", options);
  const auto late = open(memories_.mapped(), "late", following(successor_, victim_is_lost));
  EXPECT_EQ(next->stats().epoch, 2U);
  EXPECT_EQ(late->stats().epoch, 2U);
  EXPECT_EQ(next->session(), options.session);
  next->push(std::vector<Id>{1, 2}, std::vector<float>(2 * kWidth, 1), 2);  // row 1 has it
  EXPECT_EQ(pull(*late, {1, 2}), std::vector<float>(2 * kWidth, 2));
  EXPECT_TRUE(victim.succeeds());
  EXPECT_EQ(pull(*late, {1, 2}), std::vector<float>(2 * kWidth, 2));
}

TEST_F(Frozen, AWorkerThatIsFrozenBetweenPushesIsReleasedFromTheClock) {
  RowOptions options = adding_rows(kWidth);
  options.consistency = Consistency::bounded(0);
  const Memories memories(options);
  SteppedProcess victim([&] {
    const auto rows = open(memories.mapped(), "victim");
    SteppedProcess::pause_here();
    try {
      rows->tick();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kPeerLost;
    }
    return false;
  });
  const auto survivor = open(memories.mapped(), "survivor", following(successor_, victim_is_lost));
  survivor->tick();
  survivor->tick();
  EXPECT_EQ(survivor->stats().clock, 2U);
  EXPECT_TRUE(victim.succeeds());
}

// The others apply the rest of the clock, each row once, in the same memory or in new memory.
TEST_F(Frozen, WhileItAppliesAClockTheOthersContinue) {
  for (const bool in_a_row : {false, true}) {
    SCOPED_TRACE(in_a_row);
    Successor& successor = shared_with_children<Successor>();
    RowOptions options = adding_rows(kWidth);
    options.consistency = Consistency::synchronous();
    const Memories memories(options);
    std::vector<Id> ids(std::size_t{3} * kApplyParts);
    std::iota(ids.begin(), ids.end(), Id{1});
    {
      const auto first = open(memories.first(), "first");  // makes the rows
      first->push(ids, std::vector<float>(ids.size() * kWidth, 100));
      first->tick();
    }
    SteppedProcess victim([&] {
      const auto rows = open(memories.mapped(), "victim", following(successor, {}));
      SteppedProcess::pause_here();
      rows->push(ids, std::vector<float>(ids.size() * kWidth, 1));
      try {
        rows->tick();
      } catch (const Error& error) {
        return error.code() == ErrorCode::kPeerLost;
      }
      return false;
    });
    const auto survivor = open(memories.mapped(), "survivor", following(successor, victim_is_lost));
    survivor->push(ids, std::vector<float>(ids.size() * kWidth, 10));
    LongWord& clock = memories.first()->worker(1).clock;
    clock.fetch_add(1);  // as if the survivor waited in its tick
    const ApplyPart& part = memories.first()->header().parts[0];
    victim.step_while([&] { return part.rows != 2; });
    ASSERT_EQ(phase_of(memories.first()->journal(0)), JournalPhase::kCommitted);
    if (!in_a_row)
      victim.step_while([&] { return memories.first()->slot(slot_of(ids[1])).lock != 0; });
    ASSERT_EQ(part.rows, 2U);
    clock.fetch_sub(1);
    survivor->tick();
    EXPECT_EQ(survivor->stats().epoch, in_a_row ? 2U : 1U);
    EXPECT_EQ(survivor->stats().evicted_workers, 1U);
    EXPECT_TRUE(victim.succeeds());
    EXPECT_EQ(pull(*survivor, ids), std::vector<float>(ids.size() * kWidth, 111));
  }
}

// ---- sessions

TEST(Sessions, APushThatWasAppliedIsNotAppliedAgain) {
  const Memories memories(adding_rows(1));
  const auto rows = open(memories.first(), "a");
  const std::vector<Id> ids = {1, 2};
  const std::vector<float> ones(2, 1);
  rows->push(ids, ones, 5);
  rows->push(ids, ones, 5);
  rows->push(ids, ones, 4);
  EXPECT_EQ(pull(*rows, ids), ones);
  EXPECT_EQ(rows->stats().duplicate_pushes, 2U);
  EXPECT_EQ(rows->sequence(), 5U);
}

TEST(Sessions, AnUnknownSessionIsRefused) {
  const Memories memories(adding_rows(1));
  expect_error(ErrorCode::kInvalid, {"worker a: open_rows: table 't': session 12345 is unknown"},
               [&] { open(memories.first(), "a", {.session = 12345}); });
  EXPECT_FALSE(is_present_there(*memories.first(), "a"));
}

TEST(Sessions, ASessionHasOneWorker) {
  const Memories memories(adding_rows(1));
  const auto rows = open(memories.first(), "a");
  expect_error(ErrorCode::kInvalid, {"is in use by worker a (process "},
               [&] { open(memories.first(), "b", {.session = rows->session()}); });
}

TEST(Sessions, TheOldestRecordsAreUsedAgain) {
  const Memories memories(adding_rows(1));
  const std::uint64_t first = open(memories.first(), "a")->session();
  for (std::uint32_t i = 0; i < kMaxSessions; ++i) {
    const auto rows = open(memories.first(), "a");
    rows->tick();
  }
  // A late duplicate of the first session would now be applied a second time: it is refused.
  expect_error(ErrorCode::kInvalid, {"session", "is unknown: its record was freed"},
               [&] { open(memories.first(), "a", {.session = first}); });
}

TEST(Sessions, NoMoreWorkersThanPlaces) {
  const Memories memories(adding_rows(1));
  std::vector<std::unique_ptr<SharedRows>> all;
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i)
    all.push_back(open(memories.first(), "w" + std::to_string(i)));
  expect_error(ErrorCode::kInvalid, {"worker late: open_rows: table 't': 64 workers"},
               [&] { open(memories.first(), "late"); });
  all.pop_back();
  open(memories.first(), "late")->tick();
}

}  // namespace
}  // namespace paceline::tables::killed_tests
