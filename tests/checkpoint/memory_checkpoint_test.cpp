#include "paceline/checkpoint/memory_checkpoint.h"

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/core/fd.h"

#include "tests/checkpoint/sample_snapshot.h"
#include "tests/checkpoint/test_directory.h"
#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

using testing::error_of;
using testing::expect_sample;
using testing::SampleSnapshot;
using testing::TestDirectory;

void save_sample(MemoryCheckpoint& memory, std::int64_t step, std::int64_t elements = 96) {
  const SampleSnapshot sample(step, elements);
  memory.save(step, 0, *sample);
}

// Changes one byte of the file.
void damage(const std::string& path, off_t offset) {
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  std::uint8_t byte = 0;
  ASSERT_EQ(::pread(file.get(), &byte, 1, offset), 1) << offset;
  byte ^= 0x10;
  ASSERT_EQ(::pwrite(file.get(), &byte, 1, offset), 1);
}

constexpr off_t kSecondSlot = off_t{1} << 40;

TEST(MemoryCheckpoint, keeps_the_newest_of_any_size_across_openings) {
  TestDirectory folder;
  const std::string path = folder / "memory";
  {
    MemoryCheckpoint memory(path);
    EXPECT_FALSE(memory.load_newest());
    EXPECT_FALSE(memory.newest_step());
  }
  std::int64_t step = 0;
  for (const std::int64_t elements : {96, 8, 1 << 18, 96}) {
    ++step;
    {
      MemoryCheckpoint memory(path);
      save_sample(memory, step, elements);
    }
    const MemoryCheckpoint again(path);
    EXPECT_EQ(again.newest_step(), step);
    const auto loaded = again.load_newest();
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->step, step);
    expect_sample(*loaded, elements);
  }
}

TEST(MemoryCheckpoint, the_one_saved_last_counts_not_the_one_of_the_highest_step) {
  TestDirectory folder;
  MemoryCheckpoint memory(folder / "memory");
  save_sample(memory, 100);
  save_sample(memory, 7);  // the job went on from an older state
  EXPECT_EQ(memory.newest_step(), 7);
  EXPECT_EQ(memory.load_newest()->step, 7);
  save_sample(memory, 8);
  EXPECT_EQ(memory.load_newest()->step, 8);
}

TEST(MemoryCheckpoint, a_forgotten_state_is_gone_and_the_next_save_works) {
  TestDirectory folder;
  const std::string path = folder / "memory";
  MemoryCheckpoint memory(path);
  memory.forget();
  save_sample(memory, 1);
  save_sample(memory, 2);
  memory.forget();
  EXPECT_FALSE(memory.newest_step());
  EXPECT_FALSE(memory.load_newest());
  save_sample(memory, 3);
  EXPECT_EQ(memory.load_newest()->step, 3);
}

TEST(MemoryCheckpoint, any_damaged_byte_of_the_newest_gives_the_one_before) {
  TestDirectory folder;
  const std::string path = folder / "memory";
  std::vector<off_t> offsets;
  for (off_t offset = 0; offset < 112; ++offset) offsets.push_back(offset);
  for (off_t offset = 4096; offset < 4096 + 600; offset += 7) offsets.push_back(offset);
  for (const off_t offset : offsets) {
    std::filesystem::remove(path);
    {
      MemoryCheckpoint memory(path);
      save_sample(memory, 1);
      save_sample(memory, 2);
    }
    damage(path, kSecondSlot + offset);
    const auto loaded = MemoryCheckpoint(path).load_newest();
    ASSERT_TRUE(loaded) << offset;
    EXPECT_EQ(loaded->step, 1) << offset;
    expect_sample(*loaded);
  }
}

TEST(MemoryCheckpoint, damage_everywhere_gives_nothing_and_the_next_save_works) {
  TestDirectory folder;
  const std::string path = folder / "memory";
  {
    MemoryCheckpoint memory(path);
    save_sample(memory, 1);
    save_sample(memory, 2);
  }
  damage(path, 4096 + 300);
  damage(path, kSecondSlot + 4);
  MemoryCheckpoint memory(path);
  EXPECT_FALSE(memory.load_newest());
  save_sample(memory, 3);
  EXPECT_EQ(memory.load_newest()->step, 3);
}

TEST(MemoryCheckpoint, a_file_that_is_something_else_or_cut_off_gives_nothing) {
  TestDirectory folder;
  const std::string path = folder / "memory";
  testing::write_text(path, std::string(10'000, 'x'));
  EXPECT_FALSE(MemoryCheckpoint(path).load_newest());
  std::filesystem::remove(path);
  {
    MemoryCheckpoint memory(path);
    save_sample(memory, 1);
  }
  for (const std::uintmax_t size : {0, 50, 112, 4096, 4300}) {
    std::filesystem::resize_file(path, size);
    EXPECT_FALSE(MemoryCheckpoint(path).load_newest()) << size;
  }
}

TEST(MemoryCheckpoint, two_processes_at_once_are_an_error) {
  TestDirectory folder;
  const MemoryCheckpoint memory(folder / "memory");
  const Error error = error_of([&] { MemoryCheckpoint other(folder / "memory"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalid);
  EXPECT_EQ(error_of([] { MemoryCheckpoint other("/nonexistent/file"); }).code(),
            ErrorCode::kSystem);
}

TEST(MemoryCheckpoint, memory_that_does_not_suffice_is_an_error_and_the_one_before_stays) {
  TestDirectory folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    MemoryCheckpoint memory(folder / "memory");
    save_sample(memory, 1);
    const rlimit limit{1 << 16, 1 << 16};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const SampleSnapshot large(2, 1 << 18);
    const auto error = error_of([&] { memory.save(2, 0, *large); });
    ::_exit(error.code() == ErrorCode::kSystem && memory.load_newest()->step == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// As the launcher holds it: a file without a name, opened by its descriptor in another process.
TEST(MemoryCheckpoint, kill_at_any_microsecond_leaves_a_whole_one_in_the_launchers_memory) {
  const Fd held(memfd_create("memory-checkpoint-test", MFD_CLOEXEC));
  const std::string path =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(held.get());
  const Fd progress(memfd_create("progress", MFD_CLOEXEC));
  std::mt19937 random(harness::random_seed());
  std::uniform_int_distribution<int> delay(0, 4000);
  std::int64_t kept = 0;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      MemoryCheckpoint memory(path);
      const auto newest = memory.load_newest();
      for (std::int64_t step = newest ? newest->step + 1 : 1;; ++step) {
        save_sample(memory, step, 4096);
        if (::pwrite(progress.get(), &step, sizeof step, 0) != sizeof step) ::_exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(delay(random)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
    ASSERT_GE(::pread(progress.get(), &kept, sizeof kept, 0), 0);
    const auto loaded = MemoryCheckpoint(path).load_newest();
    if (!loaded) {
      EXPECT_EQ(kept, 0);
      continue;
    }
    EXPECT_GE(loaded->step, kept);
    expect_sample(*loaded, 4096);
  }
  EXPECT_GT(kept, 0) << "no round saved anything";
}

}  // namespace
}  // namespace paceline
