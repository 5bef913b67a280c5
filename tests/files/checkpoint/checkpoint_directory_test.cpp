#include "paceline/files/checkpoint/checkpoint_directory.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/files/checkpoint/manifest.h"

#include "tests/files/checkpoint/error_of.h"
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
using testing::expect_sample;
using ::testing::HasSubstr;
using testing::SoloTeam;
using testing::TestDirectory;

const std::string kShard = "/boxes-00000-of-00001.bin";

std::size_t entries_in(const std::string& path) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), {}));
}

TEST(CheckpointDirectory, an_empty_one_has_nothing_to_load) {
  TestDirectory folder;
  EXPECT_FALSE(load_newest(CheckpointDirectory(folder / "new/deep")));
  EXPECT_FALSE(load_newest(CheckpointDirectory(folder / "absent", {.read_only = true})));
  EXPECT_FALSE(fs::exists(folder / "absent"));
}

TEST(CheckpointDirectory, loads_what_was_saved) {
  TestDirectory folder;
  SoloTeam team(folder.path());
  team.save(42);
  EXPECT_TRUE(fs::exists(folder / "step-00000042" + kShard));
  const auto loaded = load_newest(team.directory());
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->manifest.step, 42);
  EXPECT_TRUE(loaded->refused.empty());
  expect_sample(*loaded);
}

TEST(CheckpointDirectory, keeps_the_newest_and_leaves_nothing_else) {
  TestDirectory folder;
  SoloTeam team(folder.path(), {.keep = 2});
  for (const std::int64_t step : {5, 1'000'000'000, 7, 1'000'000'001}) team.save(step);
  EXPECT_THAT(team.directory().list(), ElementsAre(1'000'000'000, 1'000'000'001));
  EXPECT_EQ(entries_in(folder.path()), 3U);  // two checkpoints and the workspace
}

TEST(CheckpointDirectory, never_prunes_what_it_just_saved) {
  TestDirectory folder;
  SoloTeam team(folder.path(), {.keep = 1});
  team.save(50);
  team.save(42);
  EXPECT_THAT(team.directory().list(), ElementsAre(42, 50));
}

TEST(CheckpointDirectory, keeps_the_newest_one_without_nans_until_there_is_another) {
  TestDirectory folder;
  SoloTeam team(folder.path(), {.keep = 1});
  const auto save_with_nans = [&](std::int64_t step) {
    const testing::Sample sample(step);
    CheckpointMetadata words = sample.words();
    words.metadata[Manifest::kNotFinite] = "model.weight";
    team.save(step, sample.held(), words);
  };
  save_with_nans(1);
  save_with_nans(2);
  EXPECT_THAT(team.directory().list(), ElementsAre(2));
  team.save(3);
  team.save(4);
  save_with_nans(5);
  save_with_nans(6);
  EXPECT_THAT(team.directory().list(), ElementsAre(4, 6));
  EXPECT_THAT(team.directory().prune_to(1), ElementsAre());
  team.save(7);
  EXPECT_THAT(team.directory().list(), ElementsAre(7));
}

TEST(CheckpointDirectory, a_second_save_of_a_step_replaces_it) {
  TestDirectory folder;
  SoloTeam team(folder.path());
  const testing::Sample other(1);
  team.save(7, other.held(), other.words());
  team.save(7);
  expect_sample(harness::load(team.directory(), 7));
  EXPECT_EQ(entries_in(folder.path()), 2U);
}

TEST(CheckpointDirectory, a_chosen_step_is_loaded_and_an_absent_one_lists_the_others) {
  TestDirectory folder;
  SoloTeam team(folder.path());
  team.save(3);
  team.save(4);
  expect_sample(harness::load(team.directory(), 3));
  EXPECT_THAT(error_of([&] { team.directory().verify(9); }).what(),
              Says("checkpoint.no_such_step", 9, "3, 4"));
}

TEST(CheckpointDirectory, a_wrong_call_is_an_error) {
  TestDirectory folder;
  EXPECT_THROW(CheckpointDirectory(folder.path(), {.keep = 0}), Error);
  CheckpointDirectory reader(folder.path(), {.read_only = true});
  EXPECT_THROW(reader.save_files(1, {}), Error);
  SoloTeam team(folder.path());
  EXPECT_THROW(team.save(-1), Error);
}

TEST(CheckpointDirectory, a_second_writer_is_refused_and_readers_are_not) {
  TestDirectory folder;
  SoloTeam writer(folder.path());
  writer.save(1);
  const auto error = error_of([&] { CheckpointDirectory second(folder.path()); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalid);
  EXPECT_THAT(error.what(), Says("checkpoint.other_writer", ::getpid()));
  EXPECT_TRUE(load_newest(CheckpointDirectory(folder.path(), {.read_only = true})));
}

TEST(CheckpointDirectory, a_writer_waits_for_the_lock_as_long_as_it_was_told_to) {
  const TestDirectory folder;
  std::optional<CheckpointDirectory> first(std::in_place, folder.path());
  EXPECT_THROW(CheckpointDirectory(folder.path(), {.lock_timeout = std::chrono::milliseconds(100)}),
               Error);
  std::jthread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    first.reset();
  });
  const CheckpointDirectory second(folder.path(), {.lock_timeout = std::chrono::seconds(20)});
  EXPECT_TRUE(second.list().empty());
}

TEST(CheckpointDirectory, the_lock_and_the_leftovers_of_a_dead_writer_are_taken_over) {
  TestDirectory folder;
  const pid_t child = ::fork();
  if (child == 0) {
    SoloTeam writer(folder.path());
    writer.save(1);
    const auto half = folder / ".writer-00000001/step-00000002.tmp-0123";
    fs::create_directory(half);
    testing::write_text(half + kShard, "half");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  CheckpointDirectory writer(folder.path());
  EXPECT_EQ(entries_in(folder.path()), 2U);
  EXPECT_EQ(load_newest(writer)->manifest.step, 1);
}

TEST(CheckpointDirectory, a_folder_of_another_name_is_left_alone) {
  TestDirectory folder;
  for (const char* name : {"step-1", "step-00000001x", "step-", "notes.tmp-1", "step--0000001"}) {
    fs::create_directory(folder / name);
  }
  SoloTeam team(folder.path(), {.keep = 1});
  team.save(2);
  EXPECT_THAT(team.directory().list(), ElementsAre(2));
  EXPECT_EQ(entries_in(folder.path()), 7U);
}

// Damages a shard with `spoil`; expects that the older checkpoint is loaded, with the reason.
void expect_refused(const std::string& reason,
                    const std::function<void(const std::string&)>& spoil) {
  TestDirectory folder;
  SoloTeam team(folder.path());
  for (const std::int64_t step : {1, 2}) team.save(step);
  spoil(folder / "step-00000002");
  const auto loaded = load_newest(team.directory());
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->manifest.step, 1);
  ASSERT_EQ(loaded->refused.size(), 1U);
  EXPECT_EQ(loaded->refused[0].step, 2);
  EXPECT_THAT(loaded->refused[0].reason, HasSubstr(reason));
  EXPECT_THROW(team.directory().verify(2), Error);
}

TEST(CheckpointDirectory, links_fifos_devices_and_foreign_or_missing_files_are_refused) {
  expect_refused("a symbolic link", [](const std::string& step) {
    fs::rename(step + kShard, step + "/elsewhere");
    fs::create_symlink("elsewhere", step + kShard);
  });
  expect_refused("not a regular file", [](const std::string& step) {
    fs::remove(step + kShard);
    ASSERT_EQ(::mkfifo((step + kShard).c_str(), 0600), 0);
  });
  expect_refused("not a regular file", [](const std::string& step) {
    fs::remove(step + kShard);
    fs::create_directory(step + kShard);
  });
  expect_refused("file is missing", [](const std::string& step) { fs::remove(step + kShard); });
  expect_refused("file is missing",
                 [](const std::string& step) { fs::remove(step + "/manifest.json"); });
  expect_refused("file 0 of step 1 of run \"\", expected file 0 of step 2",
                 [](const std::string& step) {
                   fs::copy_file(step + "/../step-00000001" + kShard, step + kShard,
                                 fs::copy_options::overwrite_existing);
                 });
  expect_refused("of step 1, expected 2", [](const std::string& step) {
    for (const auto* file : {"/manifest.json", kShard.c_str()}) {
      fs::copy_file(step + "/../step-00000001" + file, step + file,
                    fs::copy_options::overwrite_existing);
    }
  });
  expect_refused("not a directory", [](const std::string& step) {
    fs::rename(step, step + "-aside");
    fs::create_directory_symlink(step + "-aside", step);
  });
  expect_refused("not a regular file", [](const std::string& step) {
    fs::remove(step + "/manifest.json");
    ASSERT_EQ(::mkfifo((step + "/manifest.json").c_str(), 0600), 0);
  });
}

TEST(CheckpointDirectory, a_checkpoint_of_another_run_is_passed_over_by_a_load_for_one_run) {
  TestDirectory folder, other_folder;
  SoloTeam team(folder.path()), other(other_folder.path());
  team.save(1, "a");
  other.save(500, "b");
  fs::copy(other_folder / "step-00000500", folder / "step-00000500");
  const CheckpointDirectory& directory = team.directory();
  const auto own = load_newest(directory, "a");
  ASSERT_TRUE(own);
  EXPECT_EQ(own->manifest.step, 1);
  EXPECT_EQ(own->manifest.run, "a");
  ASSERT_EQ(own->refused.size(), 1U);
  EXPECT_THAT(own->refused[0].reason, Says("checkpoint.of_another_run", "step-00000500", "b", "a"));
  for (const char* run : {"", "b"}) EXPECT_EQ(load_newest(directory, run)->manifest.step, 500);
}

TEST(CheckpointDirectory, one_of_no_known_run_is_any_runs) {
  TestDirectory folder;
  SoloTeam team(folder.path());
  team.save(1);
  EXPECT_EQ(load_newest(team.directory(), "a")->manifest.step, 1);
}

TEST(CheckpointDirectory, the_newest_before_a_step_is_one_whose_manifest_can_be_read) {
  TestDirectory folder;
  SoloTeam team(folder.path());
  const CheckpointDirectory& directory = team.directory();
  std::vector<std::int64_t> refused;
  const auto newest_before = [&](std::int64_t step) {
    refused.clear();
    const auto found = directory.newest_before(
        step, "", [&](std::int64_t other, const std::string&) { refused.push_back(other); });
    return found ? found->step : -1;
  };
  EXPECT_EQ(newest_before(9), -1);
  for (const std::int64_t step : {1, 2, 3}) team.save(step);
  testing::write_text(folder / "step-00000003/manifest.json", "{}");
  fs::remove(folder / "step-00000002" + kShard);
  EXPECT_EQ(newest_before(9), 2);
  EXPECT_THAT(refused, ElementsAre(3));
  EXPECT_EQ(newest_before(2), 1);
  EXPECT_EQ(newest_before(1), -1);
  EXPECT_THAT(refused, ElementsAre());
}

}  // namespace
}  // namespace paceline
