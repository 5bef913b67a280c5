// Other users may put entries into a folder of checkpoints, under any name that Paceline uses.
// Nothing that such an entry points to is read, written or removed, and no process waits for it.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/files/checkpoint/memory_checkpoint.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/real_file_system.h"
#include "tests/files/checkpoint/solo_team.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using harness::load_newest;
using harness::Says;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::read_text;
using testing::RealFileSystem;
using testing::SoloTeam;
using testing::TestDirectory;
using testing::write_text;

// Another user's folder: nothing in it may change.
class Precious {
 public:
  Precious() {
    fs::create_directories(folder_ / "deep/er");
    for (const char* name : {"file", "owner.json", "step-00000001", "deep/er/file"})
      write_text(folder_ / name, std::string("precious ") + name);
  }
  const std::string& path() const { return folder_.path(); }
  std::string file() const { return folder_ / "file"; }
  void expect_untouched() const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path())) {
      ++count;
      if (!entry.is_regular_file()) continue;
      const auto name = fs::relative(entry.path(), path()).string();
      EXPECT_EQ(read_text(entry.path()), "precious " + name);
    }
    EXPECT_EQ(count, 6u);
  }

 private:
  const TestDirectory folder_;
};

struct Kind {
  const char* what;
  std::function<void(const std::string& name, const Precious& precious)> plant;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> rows = {
      {"a link to a file", [](auto& name, auto& to) { fs::create_symlink(to.file(), name); }},
      {"a link to a folder",
       [](auto& name, auto& to) { fs::create_directory_symlink(to.path(), name); }},
      {"a dangling link",
       [](auto& name, auto& to) { fs::create_symlink(to.path() + "/none", name); }},
      {"a loop", [](auto& name, auto&) { fs::create_symlink(name, name); }},
      {"a second name", [](auto& name, auto& to) { fs::create_hard_link(to.file(), name); }},
      {"a FIFO", [](auto& name, auto&) { ASSERT_EQ(::mkfifo(name.c_str(), 0600), 0); }},
      {"a link to a device", [](auto& name, auto&) { fs::create_symlink("/dev/zero", name); }},
      {"a folder with a link",
       [](auto& name, auto& to) {
         fs::create_directory(name);
         fs::create_directory_symlink(to.path(), name + "/link");
         fs::create_hard_link(to.file(), name + "/hard");
       }},
  };
  return rows;
}

// The planted names: all are names that Paceline uses. Missing parent folders are made.
const std::vector<const char*>& places() {
  static const std::vector<const char*> rows = {
      ".writer-00000007",
      ".writer-00000007/owner.json",
      ".writer-00000007/contested",
      ".writer-00000007/step-00000003.tmp-0123456789abcdef",
      ".writer-00000007/former-0123456789abcdef",
      ".writer-new-0123456789abcdef",
      ".writer-new-0123456789abcdef/owner.json",
      ".run",
      "step-00000002",
      "step-00000002/manifest.json",
      "step-00000002/boxes-00000-of-00001.bin",
      "step-00000009/manifest.json",
  };
  return rows;
}

void plant(const TestDirectory& folder, const std::string& place, const Kind& kind,
           const Precious& precious) {
  const std::string name = folder / place;
  fs::create_directories(fs::path(name).parent_path());
  fs::remove_all(name);
  kind.plant(name, precious);
}

// Does the same as a training: saves two checkpoints, reads the newest one, and prunes.
void use(const std::string& path) {
  SoloTeam team(path, {.keep = 2});
  CheckpointDirectory& directory = team.directory();
  directory.set_mark({.run = "r", .job = {}, .seed = {}});
  for (const std::int64_t step : {3, 4}) team.save(step);
  EXPECT_TRUE(load_newest(directory));
  directory.prune_to(1);
  EXPECT_THAT(directory.list(), ::testing::Contains(4));
}

TEST(PlantedPaths, of_every_kind_at_every_place_harm_nothing_and_hold_nobody_up) {
  for (const char* place : places()) {
    for (const Kind& kind : kinds()) {
      SCOPED_TRACE(std::string(kind.what) + " as " + place);
      const Precious precious;
      const TestDirectory folder;
      {
        SoloTeam team(folder.path());
        for (const std::int64_t step : {1, 2}) team.save(step);
      }
      plant(folder, place, kind, precious);
      // A reader, which does not lock or remove anything.
      const CheckpointDirectory reader(folder.path(), {.read_only = true});
      const auto loaded = load_newest(reader);
      ASSERT_TRUE(loaded);
      EXPECT_LE(loaded->manifest.step, 2);
      for (const std::int64_t step : reader.list()) {
        try {
          reader.verify(step);
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("step-0000000"));
        }
      }
      (void)reader.mark();
      precious.expect_untouched();
      // A writer, which locks and removes.
      const bool must_be_removed =
          std::string(place) == ".run" && fs::is_directory(fs::symlink_status(folder / ".run"));
      if (must_be_removed) {
        EXPECT_THAT(error_of([&] { use(folder.path()); }).what(), HasSubstr("/.run: "));
      } else {
        EXPECT_NO_THROW(use(folder.path()));
      }
      precious.expect_untouched();
    }
  }
}

// The original fault: everything in the link's target was removed, with the rights of the user who
// trains.
TEST(PlantedPaths, a_link_in_the_place_of_a_workspace_is_removed_alone) {
  const Precious precious;
  const TestDirectory folder;
  fs::create_directory_symlink(precious.path(), folder / ".writer-00000007");
  { const CheckpointDirectory directory(folder.path()); }
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder / ".writer-00000007")));
  precious.expect_untouched();
}

TEST(PlantedPaths, the_folder_itself_may_be_reached_over_links) {
  const TestDirectory folder;
  fs::create_directory(folder / "real");
  fs::create_directory_symlink("real", folder / "link");
  use(folder / "link");
  use(folder / "link/deep/er");
  EXPECT_TRUE(fs::exists(folder / "real/step-00000004/manifest.json"));
  EXPECT_TRUE(fs::exists(folder / "real/deep/er/step-00000004/manifest.json"));
  const CheckpointDirectory reader(folder / "link", {.read_only = true});
  EXPECT_EQ(load_newest(reader)->manifest.step, 4);
}

// Replaces a folder with a link to another user's folder, at the worst moment: between two calls.
class ReplacingFileSystem final : public RealFileSystem {
 public:
  ReplacingFileSystem(std::string folder, std::string by)
      : folder_(std::move(folder)), by_(std::move(by)) {}
  int unlink(const std::string& path) override {
    replace();
    return RealFileSystem::unlink(path);
  }
  int rmdir(const std::string& path) override {
    replace();
    return RealFileSystem::rmdir(path);
  }

 private:
  void replace() {
    if (std::exchange(is_done_, true)) return;
    fs::rename(folder_, folder_ + "-aside");
    fs::create_directory_symlink(by_, folder_);
  }
  const std::string folder_, by_;
  bool is_done_ = false;
};

TEST(PlantedPaths, a_folder_that_becomes_a_link_while_it_is_removed_leads_nowhere) {
  for (const char* replaced : {"top", "top/middle", "top/middle/deep"}) {
    SCOPED_TRACE(replaced);
    const Precious precious;
    const TestDirectory folder;
    fs::create_directories(folder / "top/middle/deep/er");
    for (const char* name : {"top/file", "top/middle/file", "top/middle/deep/er/file"})
      write_text(folder / name, "mine");
    ReplacingFileSystem files(folder / replaced, precious.path());
    (void)remove_tree(files, folder / "top");  // how much of it is removed depends on the order
    precious.expect_untouched();
  }
}

TEST(PlantedPaths, a_workspace_of_another_user_is_an_error_that_names_it) {
  if (::geteuid() != 0) GTEST_SKIP() << "files of two users need root";
  const TestDirectory folder;
  constexpr uid_t kThem = 12345, kUs = 54321;
  fs::create_directory(folder / ".writer-00000007");
  ASSERT_EQ(::chown((folder / ".writer-00000007").c_str(), kThem, ::getegid()), 0);
  fs::permissions(folder.path(), fs::perms::all);
  ASSERT_EQ(::seteuid(kUs), 0);
  const auto error = error_of([&] { const CheckpointDirectory directory(folder.path()); });
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(error.code(), ErrorCode::kInvalid);
  EXPECT_THAT(error.what(), Says("checkpoint.of_another_user", ".writer-00000007", 12345));
}

TEST(PlantedPaths, memory_for_checkpoints_is_a_file_of_its_own) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.what);
    const Precious precious;
    const TestDirectory folder;
    kind.plant(folder / "memory", precious);
    const auto error = error_of([&] {
      MemoryCheckpoint memory(folder / "memory");
      memory.forget();
    });
    EXPECT_THAT(error.what(), Says("checkpoint.memory_not_opened", folder / "memory"));
    precious.expect_untouched();
  }
}

}  // namespace
}  // namespace paceline
