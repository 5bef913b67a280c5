// A writer that is frozen before any of its system calls: the next generation can write at once,
// and the frozen writer changes nothing when it thaws.

#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/files/checkpoint/solo_team.h"
#include "tests/files/checkpoint/test_directory.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using harness::load_newest;
using ::testing::ElementsAre;
using testing::SoloTeam;
using testing::TestDirectory;

// Stops its process before the chosen call, among those that change something.
class FreezingFileSystem final : public FileSystem {
 public:
  explicit FreezingFileSystem(bool exchanges) : exchanges_(exchanges) {}
  void freeze_at(int call) {
    calls_ = 0;
    freeze_at_ = call;
  }

  int open(const std::string& path, int flags, mode_t mode) override {
    note();
    return real().open(path, flags, mode);
  }
  ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) override {
    return real().read_at(fd, position, bytes);
  }
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    note();
    return real().write(fd, bytes);
  }
  int fsync(int) override {
    note();
    return 0;
  }
  int close(int fd) override { return real().close(fd); }
  int mkdir(const std::string& path, mode_t mode) override {
    note();
    return real().mkdir(path, mode);
  }
  int rename(const std::string& from, const std::string& to) override {
    note();
    return real().rename(from, to);
  }
  int exchange(const std::string& a, const std::string& b) override {
    note();
    if (exchanges_) return real().exchange(a, b);
    errno = EINVAL;
    return -1;
  }
  int unlink(const std::string& path) override {
    note();
    return real().unlink(path);
  }
  int rmdir(const std::string& path) override {
    note();
    return real().rmdir(path);
  }

 private:
  void note() {
    if (calls_++ == freeze_at_) ::raise(SIGSTOP);
  }

  const bool exchanges_;
  int calls_ = 0;
  int freeze_at_ = -1;
};

// All paths with their contents, without the workspace of a process that has not become the writer.
std::map<std::string, std::string> content_of(const std::string& folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path();
    if (path.find("/.writer-new-") != std::string::npos) continue;
    content[path] = entry.is_directory() ? "" : testing::read_text(path);
  }
  return content;
}

enum Answer { kSaved = 0, kAborted = 1, kOther = 2 };

// Runs `action` and ends the process with its outcome.
[[noreturn]] void answer(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    ::_exit(error.code() == ErrorCode::kAborted ? kAborted : kOther);
  }
  ::_exit(kSaved);
}

const WriterId kOld{"job", 0};
const WriterId kNew{"job", 1};

class FrozenWriter : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  bool same_step() const { return std::get<0>(GetParam()); }

  // Runs in the child, which freezes before this call.
  [[noreturn]] void write(const std::string& path, int call) {
    FreezingFileSystem files(std::get<1>(GetParam()));
    std::optional<SoloTeam> team;
    answer([&] {
      if (claims_) files.freeze_at(call);
      team.emplace(path, CheckpointDirectoryOptions{.keep = 2, .writer = kOld}, files);
      if (!claims_) files.freeze_at(call);
      team->save(same_step() ? 3 : 4, "old");
    });
  }

  // Returns false if the writer ended before that call.
  bool survives(int call) {
    TestDirectory folder;
    {
      SoloTeam earlier(folder.path(), {.keep = 3, .writer = kOld});
      for (const std::int64_t step : {1, 2, 3}) earlier.save(step);
    }
    const pid_t child = ::fork();
    if (child == 0) write(folder.path(), call);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, WUNTRACED), child);
    if (!WIFSTOPPED(status)) return false;
    // There is no lock_timeout, so this would throw at once if it had to wait for the frozen
    // writer.
    SoloTeam successor(folder.path(), {.keep = 2, .writer = kNew});
    const auto found = load_newest(successor.directory());
    EXPECT_TRUE(found && found->refused.empty()) << "call " << call;
    successor.save(10, "new");
    const auto before = content_of(folder.path());
    ::kill(child, SIGCONT);
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << status;
    codes_.insert(WEXITSTATUS(status));
    EXPECT_EQ(content_of(folder.path()), before) << "call " << call;
    successor.save(11, "new");
    EXPECT_THAT(successor.directory().list(), ElementsAre(10, 11)) << "call " << call;
    return true;
  }

  bool claims_ = false;
  std::set<int> codes_;
};

TEST_P(FrozenWriter, in_front_of_any_call_of_a_save_changes_nothing_when_it_thaws) {
  int call = 0;
  while (survives(call)) ASSERT_LT(++call, 200);
  EXPECT_GT(call, 10);
  // After the commit no other call of a save has to succeed.
  EXPECT_THAT(codes_, ElementsAre(kSaved, kAborted));
}

TEST_P(FrozenWriter, in_front_of_any_call_of_its_claim_changes_nothing_when_it_thaws) {
  claims_ = true;
  int call = 0;
  for (; call < 6; ++call) ASSERT_TRUE(survives(call));
  EXPECT_THAT(codes_, ElementsAre(kAborted));
}

INSTANTIATE_TEST_SUITE_P(Saves, FrozenWriter,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace paceline
