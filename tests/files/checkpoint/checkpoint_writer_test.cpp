#include "paceline/files/checkpoint/checkpoint_writer.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/slow_file_system.h"
#include "tests/harness/asleep.h"
#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::SlowFileSystem;

// Each save makes one call to a simulated disk.
class CheckpointWriterTest : public ::testing::Test {
 protected:
  void save(CheckpointWriter& writer, std::int64_t step) {
    writer.start(step, [this, step] {
      if (disk_.fsync(0) != 0) refuse("cannot sync");
      on_disk_.push_back(step);
    });
  }

  SlowFileSystem disk_;
  std::vector<std::int64_t> on_disk_;  // steps; the writer orders all accesses to it
};

TEST_F(CheckpointWriterTest, returns_while_the_disk_still_works) {
  CheckpointWriter writer;
  disk_.hold();
  save(writer, 1);
  EXPECT_TRUE(writer.is_busy());
  EXPECT_FALSE(writer.take_error());
  disk_.let_go();
  EXPECT_FALSE(writer.finish());
  EXPECT_THAT(on_disk_, ElementsAre(1));
}

TEST_F(CheckpointWriterTest, an_early_save_waits_for_the_one_before) {
  CheckpointWriter writer;
  disk_.hold();
  save(writer, 1);
  std::atomic<bool> returned{false};
  std::atomic<pid_t> waiter = 0;
  std::jthread saver([&] {
    waiter = gettid();
    save(writer, 2);
    returned = true;
  });
  harness::wait_until_asleep(waiter);
  EXPECT_FALSE(returned);
  disk_.let_go();
  saver.join();
  EXPECT_FALSE(writer.finish());
  EXPECT_THAT(on_disk_, ElementsAre(1, 2));
}

TEST_F(CheckpointWriterTest, an_error_is_reported_once_and_the_next_save_succeeds) {
  CheckpointWriter writer;
  disk_.fail_from_now_on(true);
  save(writer, 1);
  const auto error = writer.finish();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kSystem);
  EXPECT_THAT(error->what(), ::testing::HasSubstr("cannot sync"));
  EXPECT_FALSE(writer.take_error());
  disk_.fail_from_now_on(false);
  save(writer, 2);
  EXPECT_FALSE(writer.finish());
  EXPECT_THAT(on_disk_, ElementsAre(2));
}

TEST(CheckpointWriter, has_a_lower_priority_until_it_is_waited_for) {
  if (::getuid() != 0) GTEST_SKIP() << "raising a priority needs root";
  const auto priority_of = [](pid_t thread) {
    return getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
  };
  const int own = priority_of(gettid());
  CheckpointWriter writer;
  std::atomic<pid_t> thread = 0;
  std::atomic<bool> may_end = false;
  writer.start(1, [&] {
    thread = gettid();
    thread.notify_all();
    may_end.wait(false);
  });
  thread.wait(0);
  EXPECT_GT(priority_of(thread), own);
  std::jthread waiter([&] { writer.finish(); });
  EXPECT_TRUE(
      harness::wait_until([&] { return priority_of(thread) == own; }, Deadline::after(60s), 1ms));
  may_end = true;
  may_end.notify_all();
}

TEST(CheckpointWriter, warns_once_when_saves_delay_the_training) {
  ::testing::internal::CaptureStderr();
  CheckpointWriter writer;
  for (std::int64_t step = 1; step <= 5; ++step) {
    EXPECT_TRUE(writer.take_turn(step, Deadline::after(60s)));
    writer.start(step, [] { std::this_thread::sleep_for(150ms); });
  }
  writer.finish();
  const std::string said = ::testing::internal::GetCapturedStderr();
  const auto first = said.find("save less often");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("save less often", first + 1), std::string::npos) << said;
  EXPECT_THAT(said, HasSubstr("the one of step 2 had to wait for the one of step 1"));
}

// While it exists, no thread of this process can start: the default stack is larger than any
// address space. (RLIMIT_NPROC does not bind root.)
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_getattr_default_np(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 60);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST_F(CheckpointWriterTest,
       a_thread_that_cannot_be_started_is_an_error_and_the_next_save_succeeds) {
  CheckpointWriter writer;
  {
    const NoThreads none;
    const auto error = error_of([&] { save(writer, 1); });
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_THAT(error.what(), Says("checkpoint.no_thread", 1));
    EXPECT_FALSE(writer.finish()) << "it was given already";
  }
  EXPECT_TRUE(on_disk_.empty());
  save(writer, 1);
  EXPECT_FALSE(writer.finish());
  EXPECT_THAT(on_disk_, ElementsAre(1));
}

TEST_F(CheckpointWriterTest, its_end_waits_for_what_was_saved) {
  for (std::int64_t step = 1; step <= 20; ++step) {
    CheckpointWriter writer;
    save(writer, step);
  }
  EXPECT_EQ(on_disk_.size(), 20U);
}

TEST_F(CheckpointWriterTest,
       a_disk_that_never_answers_is_an_error_at_the_end_and_holds_no_process) {
  CheckpointWriter writer(nullptr, 100ms);
  disk_.hold();
  save(writer, 7);
  const auto error = writer.finish();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kTimeout);
  EXPECT_THAT(error->what(), Says("checkpoint.disk_too_slow", 7, 1));
  EXPECT_THROW(save(writer, 8), Error);
  disk_.let_go();
  EXPECT_FALSE(writer.finish()) << "the disk came back";
  EXPECT_THAT(on_disk_, ElementsAre(7));

  EXPECT_EXIT(
      {
        disk_.hold();
        CheckpointWriter last(nullptr, 100ms);
        save(last, 9);
      },
      ::testing::ExitedWithCode(1),
      "checkpoint of step 9 has taken more than 1 s; this process ends without it");
}

TEST_F(CheckpointWriterTest, a_turn_comes_when_what_was_started_before_has_ended) {
  CheckpointWriter writer;
  disk_.hold();
  EXPECT_TRUE(writer.take_turn(1, Deadline::never()));
  save(writer, 1);
  std::atomic<bool> has_turn{false};
  std::atomic<pid_t> waiter = 0;
  std::jthread saver([&] {
    waiter = gettid();
    EXPECT_TRUE(writer.take_turn(2, Deadline::never()));
    has_turn = true;
  });
  harness::wait_until_asleep(waiter);
  EXPECT_FALSE(has_turn);
  disk_.let_go();
  saver.join();
  EXPECT_THAT(on_disk_, ElementsAre(1));
}

}  // namespace
}  // namespace paceline
