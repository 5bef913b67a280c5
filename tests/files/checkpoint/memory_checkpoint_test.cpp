#include "paceline/files/checkpoint/memory_checkpoint.h"

#include <algorithm>
#include <array>
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

#include "paceline/engine/core/system/fd.h"
#include "paceline/files/checkpoint/manifest.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

using testing::error_of;
using testing::TestDirectory;

// The memory has files 1 and 3 of four. The bytes of a file follow from its number and the step.
constexpr std::array<std::uint32_t, 2> kFiles = {1, 3};

std::vector<std::byte> sample_bytes(std::int64_t step, std::uint32_t file, std::int64_t elements) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(static_cast<std::size_t>(step) * 7 + file * 31 + i);
  return bytes;
}

void save_sample(MemoryCheckpoint& memory, std::int64_t step, std::int64_t elements = 300) {
  const OpenSlot open = memory.open_older();
  Manifest manifest{.step = step,
                    .run = "r",
                    .world_size = 4,
                    .files = {},
                    .tensors = {{"t", Dtype::kUint8, {4, elements}, {}}},
                    .metadata = {{"note", "naïve"}}};
  for (std::uint32_t file = 0; file < 4; ++file) {
    const auto bytes = sample_bytes(step, file, elements);
    manifest.files.push_back({"file-" + std::to_string(file), bytes.size(), digest_of(bytes)});
    manifest.tensors[0].boxes.push_back({{{file, 0}, {1, elements}}, file, 0});
  }
  std::uint64_t position = 0;
  for (const std::uint32_t file : kFiles) {
    memory.write(open.slot, position, sample_bytes(step, file, elements));
    position += manifest.files[file].size;
  }
  memory.seal(open.slot, open.newest + 1, {kFiles.begin(), kFiles.end()}, manifest);
}

// The newest checkpoint that is whole.
std::optional<SealedSlot> load_newest(const MemoryCheckpoint& memory) {
  for (const SealedSlot& sealed : memory.sealed()) {
    const bool whole = std::ranges::all_of(
        sealed.files, [&](std::uint32_t file) { return memory.is_whole(sealed, file); });
    if (whole) return sealed;
  }
  return std::nullopt;
}

std::int64_t newest_step(const MemoryCheckpoint& memory) {
  const auto newest = load_newest(memory);
  return newest ? newest->manifest.step : 0;
}

void expect_sample(const MemoryCheckpoint& memory, const SealedSlot& sealed,
                   std::int64_t elements = 300) {
  EXPECT_THAT(sealed.files, ::testing::ElementsAreArray(kFiles));
  for (const std::uint32_t file : kFiles) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(elements) - 2);
    memory.read(sealed, file, 2, bytes);
    const auto expected = sample_bytes(sealed.manifest.step, file, elements);
    EXPECT_TRUE(std::ranges::equal(bytes, std::span(expected).subspan(2))) << file;
  }
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
  { EXPECT_TRUE(MemoryCheckpoint(path).sealed().empty()); }
  std::int64_t step = 0;
  for (const std::int64_t elements : {300, 8, 3 << 20, 300}) {
    ++step;
    {
      MemoryCheckpoint memory(path);
      save_sample(memory, step, elements);
    }
    const MemoryCheckpoint again(path);
    EXPECT_EQ(again.sealed().front().manifest.step, step);
    EXPECT_EQ(again.sealed().front().manifest.metadata.at("note"), "naïve");
    const auto loaded = load_newest(again);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->manifest.step, step);
    expect_sample(again, *loaded, elements);
  }
}

TEST(MemoryCheckpoint, the_one_saved_last_counts_not_the_one_of_the_highest_step) {
  TestDirectory folder;
  MemoryCheckpoint memory(folder / "memory");
  save_sample(memory, 100);
  save_sample(memory, 7);  // the job continued from an older state
  EXPECT_EQ(newest_step(memory), 7);
  save_sample(memory, 8);
  EXPECT_EQ(newest_step(memory), 8);
}

TEST(MemoryCheckpoint, a_forgotten_state_is_gone_and_the_next_save_works) {
  TestDirectory folder;
  const std::string path = folder / "memory";
  MemoryCheckpoint memory(path);
  memory.forget();
  save_sample(memory, 1);
  save_sample(memory, 2);
  memory.forget();
  EXPECT_TRUE(memory.sealed().empty());
  save_sample(memory, 3);
  EXPECT_EQ(newest_step(memory), 3);
}

TEST(MemoryCheckpoint, any_damaged_byte_of_the_newest_gives_the_one_before) {
  TestDirectory folder;
  const std::string path = folder / "memory";
  std::vector<off_t> offsets;
  for (off_t offset = 0; offset < 104; ++offset) offsets.push_back(offset);
  for (off_t offset = 4096; offset < 4096 + 1200; offset += 7) offsets.push_back(offset);
  for (const off_t offset : offsets) {
    std::filesystem::remove(path);
    {
      MemoryCheckpoint memory(path);
      save_sample(memory, 1);
      save_sample(memory, 2);
    }
    damage(path, kSecondSlot + offset);
    const MemoryCheckpoint memory(path);
    const auto loaded = load_newest(memory);
    ASSERT_TRUE(loaded) << offset;
    EXPECT_EQ(loaded->manifest.step, 1) << offset;
    expect_sample(memory, *loaded);
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
  EXPECT_FALSE(load_newest(memory));
  save_sample(memory, 3);
  EXPECT_EQ(newest_step(memory), 3);
}

TEST(MemoryCheckpoint, a_file_that_is_something_else_or_cut_off_gives_nothing) {
  TestDirectory folder;
  const std::string path = folder / "memory";
  testing::write_text(path, std::string(10'000, 'x'));
  EXPECT_FALSE(load_newest(MemoryCheckpoint(path)));
  std::filesystem::remove(path);
  {
    MemoryCheckpoint memory(path);
    save_sample(memory, 1);
  }
  for (const std::uintmax_t size : {0, 50, 112, 4096, 4300}) {
    std::filesystem::resize_file(path, size);
    EXPECT_FALSE(load_newest(MemoryCheckpoint(path))) << size;
  }
}

TEST(MemoryCheckpoint, two_locks_at_once_are_an_error) {
  TestDirectory folder;
  MemoryCheckpoint memory(folder / "memory");
  memory.lock();
  MemoryCheckpoint second(folder / "memory");
  EXPECT_EQ(second.identity(), memory.identity());
  EXPECT_NE(MemoryCheckpoint(folder / "other").identity(), memory.identity());
  const Error error = error_of([&] { second.lock(); });
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
    const auto error = error_of([&] { save_sample(memory, 2, 1 << 20); });
    ::_exit(error.code() == ErrorCode::kSystem && newest_step(memory) == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The launcher holds the memory like this: a file without a name, which another process opens
// through its descriptor.
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
      for (std::int64_t step = newest_step(memory) + 1;; ++step) {
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
    const MemoryCheckpoint memory(path);
    const auto loaded = load_newest(memory);
    if (!loaded) {
      EXPECT_EQ(kept, 0);
      continue;
    }
    EXPECT_GE(loaded->manifest.step, kept);
    expect_sample(memory, *loaded, 4096);
  }
  EXPECT_GT(kept, 0) << "no round saved anything";
}

}  // namespace
}  // namespace paceline
