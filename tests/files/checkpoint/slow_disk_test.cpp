// Ranks that wait for a disk: for longer than a collective of the training may take, and for longer
// than the limit for disks. Neither may cost more than the checkpoint.

#include <chrono>
#include <functional>
#include <thread>

#include <gmock/gmock.h>

#include "paceline/files/checkpoint/checkpoint_team.h"

#include "tests/files/checkpoint/real_file_system.h"
#include "tests/files/checkpoint/sample_parts.h"
#include "tests/files/checkpoint/slow_file_system.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/borrowed_group.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::borrowed;
using harness::run_ranks_ok;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Held;
using testing::RealFileSystem;
using testing::SlowFileSystem;
using testing::TestDirectory;

// The time limit of the training's collectives, and the time for which the disk does not answer.
constexpr auto kGroupTimeout = 3s;
constexpr auto kSlow = 7s;

const harness::RanksOptions kOptions{.group_timeout = kGroupTimeout};

void save(CheckpointTeam& team, ProcessGroup& group, std::int64_t step) {
  const Held held(group, step);
  team.save(step, held.boxes, {.run = "r", .metadata = {}});
}

// One call of the chosen kind takes long, once.
class SlowOnce : public RealFileSystem {
 public:
  enum Call { kNone, kMkdir, kRead, kFsync, kRename, kUnlink };
  explicit SlowOnce(Call slow) : slow_(slow) {}
  int mkdir(const std::string& path, mode_t mode) override {
    pass(kMkdir);
    return RealFileSystem::mkdir(path, mode);
  }
  ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) override {
    pass(kRead);
    return RealFileSystem::read_at(fd, position, bytes);
  }
  int fsync(int fd) override {
    pass(kFsync);
    return RealFileSystem::fsync(fd);
  }
  int rename(const std::string& from, const std::string& to) override {
    pass(kRename);
    return RealFileSystem::rename(from, to);
  }
  int unlink(const std::string& path) override {
    pass(kUnlink);
    return RealFileSystem::unlink(path);
  }
  int num_slow() const { return num_slow_; }
  // Makes one more call slow.
  void again(Call slow) { slow_ = slow; }

 private:
  void pass(Call call) {
    if (slow_.load() != call) return;
    slow_ = kNone;
    ++num_slow_;
    std::this_thread::sleep_for(kSlow);  // the time that the disk takes
  }
  std::atomic<Call> slow_;
  std::atomic<int> num_slow_{0};
};

struct SlowCase {
  const char* what;
  int rank;
  SlowOnce::Call call;
};

class SlowDisk : public ::testing::TestWithParam<SlowCase> {};
INSTANTIATE_TEST_SUITE_P(Calls, SlowDisk,
                         ::testing::Values(SlowCase{"the_claim", 0, SlowOnce::kMkdir},
                                           SlowCase{"rank_0_writes", 0, SlowOnce::kFsync},
                                           SlowCase{"rank_1_writes", 1, SlowOnce::kFsync},
                                           SlowCase{"a_rename", 0, SlowOnce::kRename},
                                           SlowCase{"removing_the_oldest", 0, SlowOnce::kUnlink}),
                         [](const auto& info) { return info.param.what; });

TEST_P(SlowDisk, costs_time_and_no_checkpoint) {
  const TestDirectory folder;
  SlowOnce slow(GetParam().call);
  run_ranks_ok(
      3,
      [&](ProcessGroup& group) {
        FileSystem& files =
            group.rank() == GetParam().rank ? static_cast<FileSystem&>(slow) : FileSystem::real();
        CheckpointTeam team(borrowed(group), folder.path(), {.keep = 2}, files);
        for (const std::int64_t step : {1, 2, 3}) {
          group.barrier();  // stands for a training step
          save(team, group, step);
          EXPECT_FALSE(team.take_error());
        }
        EXPECT_FALSE(team.finish());
        group.barrier();
      },
      kOptions);
  EXPECT_EQ(slow.num_slow(), 1);
  EXPECT_THAT(CheckpointDirectory(folder.path(), {.read_only = true}).list(), ElementsAre(2, 3));
}

TEST(SlowDisk, is_waited_for_by_ranks_whose_boxes_rank_0_writes_and_reads) {
  // Rank 1 does not see the directory.
  class Blind final : public RealFileSystem {
    int open(const std::string&, int, mode_t) override {
      errno = ENOENT;
      return -1;
    }
  };
  const TestDirectory folder;
  SlowOnce slow(SlowOnce::kFsync);
  run_ranks_ok(
      2,
      [&](ProcessGroup& group) {
        Blind blind;
        CheckpointTeam team(borrowed(group), folder.path(), {},
                            group.rank() == 0 ? static_cast<FileSystem&>(slow) : blind);
        for (const std::int64_t step : {1, 2}) save(team, group, step);
        EXPECT_FALSE(team.finish());
        group.barrier();
        if (group.rank() == 0) slow.again(SlowOnce::kRead);
        const Manifest manifest =
            CheckpointDirectory(folder.path(), {.read_only = true}).read_manifest(2);
        testing::expect_parts(
            group, 2, [&](const std::vector<WantedBox>& wanted) { team.read(manifest, wanted); });
        group.barrier();
      },
      kOptions);
  EXPECT_EQ(slow.num_slow(), 2);
}

TEST(SlowDisk, that_never_answers_costs_the_saves_until_it_does_and_nothing_else) {
  const TestDirectory folder;
  SlowFileSystem files;
  files.hold();
  run_ranks_ok(
      3,
      [&](ProcessGroup& group) {
        CheckpointTeam team(
            borrowed(group), folder.path(), {.disk_timeout = 1500ms},
            group.rank() == 1 ? static_cast<FileSystem&>(files) : FileSystem::real());
        save(team, group, 1);
        for (const std::int64_t step : {2, 3}) {
          save(team, group, step);  // the second save no longer waits for the disk
          const auto error = team.take_error();
          ASSERT_TRUE(error) << step;
          // kAborted would end the run, as if another generation had taken over.
          EXPECT_NE(error->code(), ErrorCode::kAborted);
          group.barrier();
        }
        if (group.rank() == 1) files.let_go();
        team.finish();
        group.barrier();
        save(team, group, 4);
        EXPECT_FALSE(team.finish());
        group.barrier();
      },
      kOptions);
  EXPECT_THAT(CheckpointDirectory(folder.path(), {.read_only = true}).list(), ElementsAre(4));
}

}  // namespace
}  // namespace paceline
