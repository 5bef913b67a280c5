// Saves that fail or are killed: by an error of any system call, by a full disk, by SIGKILL at any
// moment.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/solo_team.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/small_disk.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using harness::load_newest;
using harness::SmallDisk;
using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_sample;
using ::testing::HasSubstr;
using testing::SoloTeam;
using testing::TestDirectory;

// Counts the calls and fails the chosen one, or it and all later ones, like a dying disk. A write
// can fail half-way.
class FailingFileSystem final : public FileSystem {
 public:
  void fail_at(int call, int error_number, bool for_ever) {
    calls_ = 0;
    fail_at_ = call;
    error_number_ = error_number;
    for_ever_ = for_ever;
  }
  int calls() const { return calls_; }
  void forbid_exchange() { exchange_allowed_ = false; }

  int open(const std::string& path, int flags, mode_t mode) override {
    return failing() ? -1 : real().open(path, flags, mode);
  }
  ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) override {
    const auto part = bytes.first(std::min<std::size_t>(bytes.size(), 100));
    return failing() ? -1 : real().read_at(fd, position, part);
  }
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    // Short writes, like those on a nearly full disk or after a signal.
    return failing() ? -1 : real().write(fd, bytes.first(std::min<std::size_t>(bytes.size(), 100)));
  }
  // No test here cuts the power, so fsync() need not wait for the disk.
  int fsync(int) override { return failing() ? -1 : 0; }
  int close(int fd) override {
    const bool failed = failing();
    const int result = real().close(fd);
    if (failed) errno = error_number_;
    return failed ? -1 : result;
  }
  int mkdir(const std::string& path, mode_t mode) override {
    return failing() ? -1 : real().mkdir(path, mode);
  }
  int rename(const std::string& from, const std::string& to) override {
    return failing() ? -1 : real().rename(from, to);
  }
  int exchange(const std::string& a, const std::string& b) override {
    if (failing()) return -1;
    if (exchange_allowed_) return real().exchange(a, b);
    errno = EINVAL;
    return -1;
  }
  int unlink(const std::string& path) override { return failing() ? -1 : real().unlink(path); }
  int rmdir(const std::string& path) override { return failing() ? -1 : real().rmdir(path); }

 private:
  bool failing() {
    const int call = calls_++;
    if (call != fail_at_ && !(for_ever_ && call > fail_at_)) return false;
    errno = error_number_;
    return true;
  }

  int calls_ = 0;
  int fail_at_ = -1;
  int error_number_ = 0;
  bool for_ever_ = false;
  bool exchange_allowed_ = true;
};

class EveryCallFails : public ::testing::TestWithParam<std::tuple<int, bool, bool, bool>> {};

// Each round fails the next call. The loop ends when a save makes too few calls to fail.
TEST_P(EveryCallFails, an_older_checkpoint_still_loads_and_the_next_save_succeeds) {
  const auto [error_number, for_ever, same_step, exchange] = GetParam();
  int call = 0;
  for (bool failed = true; failed; ++call) {
    ASSERT_LT(call, 500);
    TestDirectory folder;
    FailingFileSystem files;
    if (!exchange) files.forbid_exchange();
    std::int64_t step = 0;
    {
      SoloTeam team(folder.path(), {.keep = 2}, files);
      for (step = 1; step <= 3; ++step) team.save(step);
      if (same_step) step = 3;
      files.fail_at(call, error_number, for_ever);
      bool acknowledged = true;
      try {
        team.save(step);
      } catch (const Error& error) {
        acknowledged = false;
        EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(folder.path()));
      }
      failed = files.calls() > call;
      const auto loaded = load_newest(CheckpointDirectory(folder.path(), {.read_only = true}));
      ASSERT_TRUE(loaded) << "call " << call;
      EXPECT_GE(loaded->manifest.step, acknowledged ? step : step - 1) << "call " << call;
      expect_sample(*loaded);
      EXPECT_TRUE(loaded->refused.empty());
    }
    files.fail_at(-1, 0, false);
    SoloTeam team(folder.path(), {.keep = 2}, files);
    team.save(step);
    EXPECT_EQ(load_newest(team.directory())->manifest.step, step);
    const auto entries = std::distance(fs::directory_iterator(folder.path()), {});
    // Two checkpoints and the workspace; on a full disk the older checkpoint may have been removed
    // to make room.
    const bool full = error_number == ENOSPC || error_number == EDQUOT;
    EXPECT_LE(entries, 3) << "call " << call;
    EXPECT_GE(entries, full ? 2 : 3) << "call " << call;
  }
  EXPECT_GT(call, 15);
}

INSTANTIATE_TEST_SUITE_P(Errors, EveryCallFails,
                         ::testing::Combine(::testing::Values(ENOSPC, EIO, EDQUOT, EROFS),
                                            ::testing::Bool(), ::testing::Bool(),
                                            ::testing::Bool()));

class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::getuid() != 0) GTEST_SKIP() << "a small file system needs root";
  }
  // Saves slightly more than 1 MiB.
  static void save_large(SoloTeam& team, std::int64_t step) { team.save(step, "", 1 << 18); }
};

TEST_F(FullDisk, with_room_for_as_many_as_are_kept_but_no_more_keeps_saving) {
  TestDirectory folder;
  const SmallDisk disk(folder.path(), "3700k");
  SoloTeam team(folder.path(), {.keep = 3});
  const CheckpointDirectory& directory = team.directory();
  for (std::int64_t step = 1; step <= 3; ++step) save_large(team, step);
  EXPECT_FALSE(directory.room());
  for (std::int64_t step = 4; step <= 9; ++step) {
    save_large(team, step);
    EXPECT_EQ(directory.room(), 3);
    EXPECT_THAT(directory.list(), ElementsAre(step - 2, step - 1, step));
    expect_sample(*load_newest(directory), 1 << 18);
  }
}

TEST_F(FullDisk, that_others_fill_leaves_room_for_fewer) {
  TestDirectory folder;
  const SmallDisk disk(folder.path(), "3700k");
  SoloTeam team(folder.path(), {.keep = 3});
  const CheckpointDirectory& directory = team.directory();
  for (std::int64_t step = 1; step <= 2; ++step) save_large(team, step);
  testing::write_text(folder / "somebody's", std::string(700 << 10, 'x'));
  for (std::int64_t step = 3; step <= 6; ++step) {
    save_large(team, step);
    EXPECT_EQ(directory.room(), 2);
    EXPECT_THAT(directory.list(), ElementsAre(step - 1, step));
  }
}

TEST_F(FullDisk, with_room_for_one_keeps_that_one) {
  TestDirectory folder;
  const SmallDisk disk(folder.path(), "1500k");
  SoloTeam team(folder.path(), {.keep = 3});
  const CheckpointDirectory& directory = team.directory();
  save_large(team, 1);
  for (std::int64_t step = 2; step <= 3; ++step) {
    const auto error = error_of([&] { save_large(team, step); });
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
  }
  EXPECT_THAT(directory.list(), ElementsAre(1));
  expect_sample(*load_newest(directory), 1 << 18);
}

TEST_F(FullDisk, never_costs_the_only_checkpoint_that_verifies) {
  TestDirectory folder;
  const SmallDisk disk(folder.path(), "3700k");
  SoloTeam team(folder.path(), {.keep = 3});
  const CheckpointDirectory& directory = team.directory();
  for (std::int64_t step = 1; step <= 3; ++step) save_large(team, step);
  for (const char* step : {"step-00000002", "step-00000003"}) {
    std::fstream shard(folder / step + "/boxes-00000-of-00001.bin",
                       std::ios::in | std::ios::out | std::ios::binary);
    shard.seekp(5000);
    shard.put('\x55');
  }
  save_large(team, 4);
  EXPECT_THAT(directory.list(), ElementsAre(1, 3, 4));
}

TEST_F(FullDisk, keeps_the_newest_checkpoint_without_nans) {
  constexpr std::int64_t kElements = 1 << 18;
  std::vector<float> weights(kElements);
  const auto save = [&](SoloTeam& team, std::int64_t step) {
    team.save(step,
              {{{"weights", Dtype::kFloat32, {kElements}, whole_box({kElements})},
                {reinterpret_cast<std::byte*>(weights.data()), {1}},
                true}},
              {});
  };
  for (const bool has_room_for_three : {true, false}) {
    TestDirectory folder;
    const SmallDisk disk(folder.path(), has_room_for_three ? "3700k" : "2500k");
    SoloTeam team(folder.path(), {.keep = 3});
    const CheckpointDirectory& directory = team.directory();
    weights[100'000] = 0;
    for (std::int64_t step = 1; step <= 2; ++step) save(team, step);
    weights[100'000] = std::numeric_limits<float>::quiet_NaN();
    save(team, 3);
    for (std::int64_t step = 4; step <= 7; ++step) {
      if (has_room_for_three) {
        save(team, step);
        EXPECT_THAT(directory.list(), ElementsAre(2, step - 1, step));
      } else {
        EXPECT_THAT(error_of([&] { save(team, step); }).what(),
                    HasSubstr("No space left on device"));
        EXPECT_THAT(directory.list(), ElementsAre(2, 3));
      }
    }
    EXPECT_EQ(load_newest(directory)->manifest.step, has_room_for_three ? 7 : 3);
  }
}

TEST(CheckpointFaults, a_failing_read_falls_back) {
  TestDirectory folder;
  FailingFileSystem files;
  SoloTeam team(folder.path(), {}, files);
  for (const std::int64_t step : {1, 2}) team.save(step);
  int call = 0;
  for (bool failed = true; failed; ++call) {
    files.fail_at(call, EIO, false);
    const auto loaded = load_newest(team.directory());
    failed = files.calls() > call && !loaded->refused.empty();
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->manifest.step, loaded->refused.empty() ? 2 : 1);
    expect_sample(*loaded);
  }
  EXPECT_GT(call, 5);
}

TEST(CheckpointFaults, a_file_size_limit_is_an_error_with_file_and_size) {
  TestDirectory folder;
  const pid_t child = ::fork();
  if (child == 0) {
    // In a separate process, because not every user can raise the limit again.
    ::signal(SIGXFSZ, SIG_IGN);
    SoloTeam team(folder.path());
    team.save(1);
    const rlimit limit{1 << 16, 1 << 16};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto error = error_of([&] { team.save(2, "", 1 << 18); });  // 1 MiB
    const std::string text = error.what();
    const bool told = error.code() == ErrorCode::kSystem &&
                      text.find("boxes-00000-of-00001.bin") != std::string::npos &&
                      text.find("65536 were written") != std::string::npos;
    const bool clean = std::distance(fs::directory_iterator(folder.path()), {}) == 2;
    team.save(3);  // the training continues
    ::_exit(told && clean && load_newest(team.directory())->manifest.step == 3 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The time of four saves on this disk. A kill within such a time can meet every part of a save.
std::int64_t microseconds_of_four_saves() {
  TestDirectory folder;
  SoloTeam team(folder.path());
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t step = 1; step <= 4; ++step) team.save(step);
  return (std::chrono::steady_clock::now() - start) / std::chrono::microseconds(1);
}

// How the victim process saves its checkpoints.
enum class Saves {
  kAcknowledged,  // waits until each checkpoint is on the disk
  kBehind         // starts a save while the previous one is written
};

// Writes the newest step that must not be lost into a file, so that it is known after the process
// was killed.
[[noreturn]] void save_for_ever(const std::string& path, int safe, Saves saves) {
  SoloTeam team(path, {.keep = 2});
  const auto newest = load_newest(team.directory());
  for (std::int64_t step = newest ? newest->manifest.step + 1 : 1;; ++step) {
    std::int64_t on_disk = step;
    if (saves == Saves::kAcknowledged) {
      team.save(step);
    } else {
      team.begin_save(step);
      on_disk = step - 1;
    }
    if (::pwrite(safe, &on_disk, sizeof on_disk, 0) != sizeof on_disk) ::_exit(1);
  }
}

class KilledWriter : public ::testing::TestWithParam<Saves> {};
INSTANTIATE_TEST_SUITE_P(Saves, KilledWriter,
                         ::testing::Values(Saves::kAcknowledged, Saves::kBehind));

TEST_P(KilledWriter, at_any_microsecond_loses_no_step_that_is_on_the_disk) {
  TestDirectory folder;
  const int safe = ::open((folder / "safe").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(safe, 0);
  const std::string path = folder / "checkpoints";
  std::mt19937 random(harness::random_seed());
  const std::int64_t four_saves = microseconds_of_four_saves();
  std::int64_t longest = four_saves;
  std::int64_t last = 0;
  for (int round = 0; round < 50; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      // Hides the warning, in each round, that checkpoints come faster than the disk can write
      // them.
      ::close(STDERR_FILENO);
      save_for_ever(path, safe, GetParam());
    }
    std::uniform_int_distribution<std::int64_t> delay(0, longest);
    std::this_thread::sleep_for(std::chrono::microseconds(delay(random)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
    const std::int64_t before = last;
    ASSERT_GE(::pread(safe, &last, sizeof last, 0), 0);
    // On a busy machine a process may start and save much later than the one that was measured.
    if (last == before) longest = std::min(longest * 5 / 4, 20 * four_saves);
    const auto loaded = load_newest(CheckpointDirectory(path, {.read_only = true}));
    if (last > 0) {
      ASSERT_TRUE(loaded) << "round " << round;
    }
    if (!loaded) continue;
    EXPECT_GE(loaded->manifest.step, last) << "round " << round;
    EXPECT_TRUE(loaded->refused.empty()) << loaded->refused[0].reason;
    expect_sample(*loaded);
  }
  EXPECT_GT(last, 0) << "no round saved anything";
  ::close(safe);
}

}  // namespace
}  // namespace paceline
