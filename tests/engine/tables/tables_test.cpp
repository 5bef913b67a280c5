// Tables of a job's workers, in one process and in several.

#include "paceline/engine/tables/tables.h"

#include <csignal>
#include <thread>

#include "paceline/engine/store/file_store.h"

#include "tests/engine/rpc/job.h"
#include "tests/engine/rpc/worker_process.h"
#include "tests/engine/tables/table_job.h"
#include "tests/harness/fresh_directory.h"

namespace paceline::tables {
namespace {

using namespace testing_job;
using rpc::testing_job::Job;
using rpc::testing_job::Process;

TEST(Tables, AreSharedByTheWorkersOfAHost) {
  Job job;
  const auto one = job.join("one"), two = job.join("two");
  Tables first(*one), second(*two);
  const auto a = first.open_rows("t", adding_rows(2));
  const auto b = second.open_rows("t", adding_rows(2));
  const auto other = second.open_rows("u", adding_rows(2));
  a->push(std::vector<Id>{1}, std::vector<float>{1, 2});
  EXPECT_EQ(pull(*b, {1}), (std::vector<float>{1, 2}));
  EXPECT_EQ(pull(*other, {1}), (std::vector<float>{0, 0}));
  EXPECT_EQ(a->name(), "t");
  EXPECT_EQ(b->width(), 2U);
}

TEST(Tables, LiveAsLongAsAWorkerHasThemOpen) {
  Job job;
  const auto one = job.join("one"), two = job.join("two");
  Tables first(*one), second(*two);
  auto a = first.open_rows("t", adding_rows(1));
  a->push(std::vector<Id>{1}, std::vector<float>{1});
  auto b = second.open_rows("t", adding_rows(1));
  a.reset();
  EXPECT_EQ(pull(*b, {1})[0], 1);
  b.reset();
  const auto c = first.open_rows("t", adding_rows(3));  // nobody has it: other options are possible
  EXPECT_EQ(pull(*c, {1}), std::vector<float>(3, 0));
  EXPECT_EQ(c->stats().epoch, 2U);
}

// Each worker of this process has mapped the memory itself.
TEST(Tables, AreFoundAfterTheLastWorkerThatCameHasLeft) {
  Job job;
  const auto one = job.join("one"), two = job.join("two");
  Tables first(*one), second(*two);
  const auto a = first.open_rows("t", adding_rows(1));
  a->push(std::vector<Id>{1}, std::vector<float>{1});
  auto b = second.open_rows("t", adding_rows(1));
  b.reset();
  const auto c = second.open_rows("t", adding_rows(1));
  EXPECT_EQ(pull(*c, {1})[0], 1);
  EXPECT_EQ(c->stats().epoch, 1U);
}

TEST(Tables, MustBeOpenedWithTheSameOptions) {
  Job job;
  const auto one = job.join("one"), two = job.join("two");
  Tables first(*one), second(*two);
  const auto a = first.open_rows("t", adding_rows(2));
  expect_error(ErrorCode::kInvalid,
               {"open_rows: table 't' is open with other options: width is 3 here and 2 there"},
               [&] { second.open_rows("t", adding_rows(3)); });
}

// Without waiting, the first worker's clock 0 would end before the second one has joined it.
TEST(Tables, WaitForTheWorkersThatTrainThem) {
  Job job;
  const auto one = job.join("one"), two = job.join("two");
  const RowOptions options{.width = 1,
                           .optimizer = SGD{.lr = -1},
                           .consistency = Consistency::synchronous(),
                           .initial_range = 0};
  const auto train = [&](rpc::Workers& workers, std::chrono::milliseconds later) {
    std::this_thread::sleep_for(later);
    Tables tables(workers);
    const auto rows = tables.open_rows("t", options, {.num_workers = 2});
    rows->push(std::vector<Id>{1}, std::vector<float>{1});
    rows->tick();
    return pull(*rows, {1})[0];
  };
  float first = 0;
  std::thread other([&] { first = train(*one, 0ms); });
  EXPECT_EQ(train(*two, 50ms), 2);
  other.join();
  EXPECT_EQ(first, 2);
  Tables again(*one);
  again.open_rows("t", options, {.num_workers = 2});  // counts once
}

// The list of workers may be a second old.
TEST(Tables, KeepAWorkerThatHasJustJoinedAgain) {
  Job job;
  auto one = job.join("one");
  const auto two = job.join("two");
  Tables second(*two);
  RowOptions options = adding_rows(1);
  options.consistency = Consistency::bounded(0);
  const auto b = second.open_rows("t", options);
  one->leave();
  ASSERT_TRUE(two->wait_until_gone("one", 20s));
  one = job.join("one");
  Tables first(*one);
  const auto a = first.open_rows("t", options);
  std::thread other([&] { b->tick(); });  // waits for the other worker's clock
  std::this_thread::sleep_for(200ms);
  EXPECT_NO_THROW(a->tick());
  other.join();
  EXPECT_EQ(b->stats().evicted_workers, 0U);
}

TEST(Tables, NameTheNumberOfWorkersThatTheyWaitFor) {
  Job job;
  const auto one = job.join("one");
  Tables tables(*one);
  expect_error(ErrorCode::kTimeout,
               {"worker one: open_rows: table 't': 1 of 3 workers (num_workers) have opened it"},
               [&] { tables.open_rows("t", adding_rows(1), {.num_workers = 3, .timeout = 20ms}); });
}

// Workers in processes of their own.
class Processes : public testing::Test {
 protected:
  std::unique_ptr<rpc::Workers> join(const std::string& name) {
    rpc::JoinOptions options{
        .store = std::make_shared<FileStore>(path_), .secret = secret_, .address = "127.0.0.1"};
    options.deadline = 20s;
    return rpc::join(name, options);
  }
  template <class Condition>
  static void wait_for(Condition condition) {
    while (!condition()) std::this_thread::sleep_for(1ms);
  }

  const FreshDirectory folder_;
  const std::string path_ = folder_.file("store");
  const Secret secret_ = Secret::generate();
  std::atomic<int>& stage_ = shared_with_children<std::atomic<int>>();
};

TEST_F(Processes, OpenATableAtTheSameTime) {
  constexpr int kWorkers = 4, kPushes = 200;
  std::vector<std::unique_ptr<Process>> processes;
  for (int worker = 0; worker < kWorkers; ++worker) {
    processes.push_back(std::make_unique<Process>([&, worker] {
      const auto workers = join("w" + std::to_string(worker));
      Tables tables(*workers);
      const auto rows = tables.open_rows("t", adding_rows(kWorkers));
      ++stage_;
      wait_for([&] { return stage_ >= kWorkers; });
      std::vector<float> one(kWorkers);
      one[worker] = 1;
      for (int push = 0; push < kPushes; ++push) rows->push(std::vector<Id>{-1}, one);
      ++stage_;
      wait_for([&] { return stage_ >= 2 * kWorkers; });
      const bool is_right = pull(*rows, {-1}) == std::vector<float>(kWorkers, kPushes);
      ++stage_;
      wait_for([&] { return stage_ >= 3 * kWorkers; });
      return is_right;
    }));
  }
  for (const auto& process : processes) EXPECT_TRUE(process->succeeds());
}

TEST_F(Processes, ATableSurvivesTheWorkerThatMadeIt) {
  Process maker([&] {
    const auto workers = join("maker");
    Tables tables(*workers);
    const auto rows = tables.open_rows("t", adding_rows(1));
    rows->push(std::vector<Id>{1}, std::vector<float>{5});
    stage_ = 1;
    return rpc::testing_job::serve_for_ever();
  });
  Process killer([&] {
    wait_for([&] { return stage_ == 1; });
    const auto workers = join("killer");
    Tables tables(*workers);
    const auto rows = tables.open_rows("t", adding_rows(1));
    stage_ = 2;
    wait_for([&] { return stage_ == 3; });
    const auto again = join("third");
    Tables others(*again);
    return pull(*others.open_rows("t", adding_rows(1)), {1})[0] == 5;
  });
  wait_for([&] { return stage_ == 2; });
  maker.end();
  stage_ = 3;
  EXPECT_TRUE(killer.succeeds());
}

// The calls between workers give a frozen worker up after a lease; then nobody waits for its clock.
TEST_F(Processes, AFrozenWorkerIsReleasedAfterALease) {
  RowOptions options = adding_rows(1);
  options.consistency = Consistency::bounded(0);
  Process frozen([&] {
    const auto workers = join("frozen");
    Tables tables(*workers);
    const auto rows = tables.open_rows("t", options);
    rows->push(std::vector<Id>{1}, std::vector<float>{1});
    stage_ = 1;
    wait_for([&] { return stage_ == 3; });  // it is frozen here for a while
    try {
      rows->push(std::vector<Id>{1}, std::vector<float>{100});
    } catch (const Error& error) {
      return error.code() == ErrorCode::kPeerLost;
    }
    return false;
  });
  Process other([&] {
    const auto workers = join("other");
    Tables tables(*workers);
    const auto rows = tables.open_rows("t", options);
    rows->push(std::vector<Id>{1}, std::vector<float>{1});
    wait_for([&] { return stage_ == 2; });
    const auto begin = std::chrono::steady_clock::now();
    rows->tick();
    const bool is_soon = std::chrono::steady_clock::now() - begin < 50s;
    const bool is_right = pull(*rows, {1})[0] == 2 && rows->stats().evicted_workers == 1;
    stage_ = 3;
    return is_soon && is_right;
  });
  wait_for([&] { return stage_ == 1; });
  frozen.freeze();
  stage_ = 2;
  EXPECT_TRUE(other.succeeds());
  frozen.thaw();
  EXPECT_TRUE(frozen.succeeds());
}

}  // namespace
}  // namespace paceline::tables
