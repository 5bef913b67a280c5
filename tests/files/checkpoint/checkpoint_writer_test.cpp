#include "paceline/files/checkpoint/checkpoint_writer.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/files/checkpoint/sample_snapshot.h"
#include "tests/files/checkpoint/slow_file_system.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/asleep.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using testing::error_of;
using testing::expect_sample;
using testing::SampleSnapshot;
using testing::SlowFileSystem;
using testing::TestDirectory;

// Writes a sample, which lives until it is on the disk.
void save(CheckpointWriter& writer, CheckpointDirectory& directory, std::int64_t step,
          std::int64_t elements = 96) {
  const auto sample = std::make_shared<SampleSnapshot>(step, elements);
  writer.start(step, [&directory, step, sample] { directory.save(step, **sample); });
}

TEST(CheckpointWriter, returns_while_the_disk_still_works) {
  TestDirectory folder;
  SlowFileSystem files;
  CheckpointDirectory directory(folder.path(), {}, files);
  CheckpointWriter writer;
  files.hold();
  save(writer, directory, 1, 1 << 18);
  EXPECT_TRUE(directory.list().empty());
  EXPECT_FALSE(writer.take_error());
  files.let_go();
  EXPECT_FALSE(writer.finish());
  expect_sample(directory.load(1), 1 << 18);
}

TEST(CheckpointWriter, an_early_save_waits_for_the_one_before) {
  TestDirectory folder;
  SlowFileSystem files;
  CheckpointDirectory directory(folder.path(), {.keep = 10}, files);
  CheckpointWriter writer;
  files.hold();
  save(writer, directory, 1);
  std::atomic<bool> returned{false};
  std::atomic<pid_t> waiter = 0;
  std::jthread saver([&] {
    waiter = gettid();
    save(writer, directory, 2, 1 << 16);
    returned = true;
  });
  harness::wait_until_asleep(waiter);
  EXPECT_FALSE(returned);
  files.let_go();
  saver.join();
  EXPECT_FALSE(writer.finish());
  EXPECT_EQ(directory.list(), (std::vector<std::int64_t>{1, 2}));
  expect_sample(directory.load(1));
  expect_sample(directory.load(2), 1 << 16);
}

TEST(CheckpointWriter, an_error_is_reported_once_and_the_next_save_succeeds) {
  TestDirectory folder;
  SlowFileSystem files;
  CheckpointDirectory directory(folder.path(), {}, files);
  CheckpointWriter writer;
  files.fail_from_now_on(true);
  save(writer, directory, 1);
  const auto error = writer.finish();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kSystem);
  EXPECT_THAT(error->what(), ::testing::HasSubstr("cannot sync"));
  EXPECT_FALSE(writer.take_error());
  files.fail_from_now_on(false);
  save(writer, directory, 1);
  EXPECT_FALSE(writer.finish());
  expect_sample(directory.load(1));
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

// No thread of this process starts as long as it lives: each wants a stack larger than any address
// space. (RLIMIT_NPROC does not bind root.)
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

TEST(CheckpointWriter, a_thread_that_cannot_be_started_is_an_error_and_the_next_save_succeeds) {
  TestDirectory folder;
  CheckpointDirectory directory(folder.path());
  CheckpointWriter writer;
  {
    const NoThreads none;
    const auto error = error_of([&] { save(writer, directory, 1); });
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("starting the thread that writes the checkpoint of step 1: "));
    EXPECT_FALSE(writer.finish()) << "it was given already";
  }
  EXPECT_TRUE(directory.list().empty());
  save(writer, directory, 1);
  EXPECT_FALSE(writer.finish());
  expect_sample(directory.load(1));
}

TEST(CheckpointWriter, its_end_waits_for_what_was_saved) {
  TestDirectory folder;
  CheckpointDirectory directory(folder.path());
  for (std::int64_t step = 1; step <= 20; ++step) {
    CheckpointWriter writer;
    save(writer, directory, step, 1 << 14);
  }
  EXPECT_EQ(directory.list().back(), 20);
  expect_sample(directory.load(20), 1 << 14);
}

TEST(CheckpointWriter, a_disk_that_never_answers_is_an_error_at_the_end_and_holds_no_process) {
  TestDirectory folder;
  SlowFileSystem files;
  CheckpointDirectory directory(folder.path(), {}, files);
  CheckpointWriter writer(nullptr, 100ms);
  files.hold();
  save(writer, directory, 7);
  const auto error = writer.finish();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kTimeout);
  EXPECT_THAT(error->what(), ::testing::HasSubstr("checkpoint of step 7 within 1 s"));
  EXPECT_THROW(save(writer, directory, 8), Error);
  files.let_go();
  EXPECT_FALSE(writer.finish()) << "the disk came back";
  EXPECT_EQ(directory.list(), (std::vector<std::int64_t>{7}));

  EXPECT_EXIT(
      {
        files.hold();
        CheckpointWriter last(nullptr, 100ms);
        save(last, directory, 9);
      },
      ::testing::ExitedWithCode(1),
      "checkpoint of step 9 within 1 s; this process ends without it");
}

TEST(CheckpointWriter, a_turn_comes_when_what_was_started_before_has_ended) {
  TestDirectory folder;
  SlowFileSystem files;
  CheckpointDirectory directory(folder.path(), {.keep = 10}, files);
  CheckpointWriter writer;
  files.hold();
  EXPECT_TRUE(writer.take_turn(1, Deadline::never()));
  save(writer, directory, 1);
  std::atomic<bool> has_turn{false};
  std::atomic<pid_t> waiter = 0;
  std::jthread saver([&] {
    waiter = gettid();
    EXPECT_TRUE(writer.take_turn(2, Deadline::never()));
    has_turn = true;
  });
  harness::wait_until_asleep(waiter);
  EXPECT_FALSE(has_turn);
  files.let_go();
  saver.join();
  EXPECT_EQ(directory.list(), (std::vector<std::int64_t>{1}));
}

// Saves without a pause; notes the step before the one that it handed over last, which is on the
// disk by then.
[[noreturn]] void save_for_ever(const std::string& path, std::atomic<std::int64_t>* on_disk) {
  CheckpointDirectory directory(path, {.keep = 2});
  const auto newest = directory.load_newest();
  CheckpointWriter writer;
  for (std::int64_t step = newest ? newest->step + 1 : 1;; ++step) {
    save(writer, directory, step);
    if (step > 1) *on_disk = step - 1;
  }
}

TEST(CheckpointWriter, kill_at_any_microsecond_leaves_the_newest_but_one_at_least) {
  TestDirectory folder;
  void* const page = mmap(nullptr, sizeof(std::atomic<std::int64_t>), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const on_disk = new (page) std::atomic<std::int64_t>(0);
  std::mt19937 random(harness::random_seed());
  // Up to twice the time that two saves take, whatever else the machine does.
  std::uniform_real_distribution<double> part(0, 2);
  std::chrono::duration<double> time_of_two_saves{};
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      close(STDERR_FILENO);  // "they come faster than the disk can write them", each time
      save_for_ever(folder.path(), on_disk);
    }
    const auto begin = std::chrono::steady_clock::now();
    if (round == 0) {
      EXPECT_TRUE(harness::wait_until([&] { return *on_disk > 0; }, Deadline::after(60s), 50us));
      time_of_two_saves = std::chrono::steady_clock::now() - begin;
    } else {
      std::this_thread::sleep_for(part(random) * time_of_two_saves);
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
    const auto loaded = CheckpointDirectory(folder.path(), {.read_only = true}).load_newest();
    if (!loaded) {
      EXPECT_EQ(*on_disk, 0);
      continue;
    }
    EXPECT_GE(loaded->step, *on_disk) << "round " << round;
    EXPECT_TRUE(loaded->refused.empty());
    expect_sample(*loaded);
  }
  EXPECT_GT(*on_disk, 0) << "no round saved anything";
  munmap(page, sizeof(std::atomic<std::int64_t>));
}

}  // namespace
}  // namespace paceline
