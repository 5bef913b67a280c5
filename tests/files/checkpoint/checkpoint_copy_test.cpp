#include "paceline/files/checkpoint/checkpoint_copy.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/safetensors.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/solo_team.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using harness::Says;
using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_sample;
using testing::SoloTeam;
using testing::TestDirectory;

TEST(CheckpointCopy, an_exported_file_is_safetensors_and_imports_as_the_same_checkpoint) {
  const TestDirectory folder, other;
  SoloTeam team(folder.path());
  const CheckpointDirectory& directory = team.directory();
  team.save(42, "run-a");
  const std::string file = folder / "all.safetensors";
  const std::uint64_t bytes = export_safetensors(directory, 42, file);
  EXPECT_EQ(bytes, fs::file_size(file));
  const SafetensorsHeader parsed = SafetensorsFile(file).header();
  EXPECT_EQ(parsed.tensors.size(), 3U);
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
  EXPECT_EQ(parsed.metadata.at("paceline_step"), "42");

  CheckpointDirectory into(other.path());
  EXPECT_EQ(import_safetensors(file, into), 42);
  const harness::Loaded loaded = harness::load(into, 42);
  expect_sample(loaded);
  EXPECT_EQ(loaded.manifest.run, "run-a");
  EXPECT_TRUE(diff_checkpoints(directory, 42, into, 42).empty());
  EXPECT_THAT(error_of([&] { import_safetensors(file, into); }).what(),
              Says("checkpoint.step_exists", into.path(), 42));
}

TEST(CheckpointCopy, weights_alone_have_their_names_in_the_model) {
  const TestDirectory folder;
  SoloTeam team(folder.path());
  const CheckpointDirectory& directory = team.directory();
  team.save(1);
  const std::string file = folder / "weights.safetensors";
  export_safetensors(directory, 1, file, {.weights_only = true});
  const SafetensorsHeader parsed = SafetensorsFile(file).header();
  ASSERT_EQ(parsed.tensors.size(), 1U);
  EXPECT_EQ(parsed.tensors[0].name, "weight");
  EXPECT_EQ(parsed.metadata.size(), 1U);
}

TEST(CheckpointCopy, a_damaged_checkpoint_or_file_is_refused_and_leaves_nothing) {
  const TestDirectory folder, other;
  SoloTeam team(folder.path());
  const CheckpointDirectory& directory = team.directory();
  CheckpointDirectory into(other.path());
  team.save(1);
  const std::string file = folder / "all.safetensors";
  export_safetensors(directory, 1, file);
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_EQ(error_of([&] { import_safetensors(file, into); }).code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(into.list().empty());
  fs::remove(file);
  fs::resize_file(folder / "step-00000001/boxes-00000-of-00001.bin", 100);
  EXPECT_EQ(error_of([&] { export_safetensors(directory, 1, file); }).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(error_of([&] { merge_checkpoint(directory, 1, into); }).code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(fs::exists(file));
  EXPECT_TRUE(into.list().empty());
}

TEST(CheckpointCopy, a_merged_checkpoint_has_one_file_and_the_same_tensors) {
  const TestDirectory folder, other;
  SoloTeam team(folder.path());
  CheckpointDirectory into(other.path());
  team.save(5, "r");
  merge_checkpoint(team.directory(), 5, into);
  expect_sample(harness::load(into, 5));
  EXPECT_EQ(into.read_manifest(5).run, "r");
  EXPECT_EQ(into.read_manifest(5).files.size(), 1U);
}

TEST(CheckpointCopy, differences_are_listed_by_tensor) {
  const TestDirectory folder;
  SoloTeam team(folder.path(), {.keep = 9});
  const CheckpointDirectory& directory = team.directory();
  team.save(10);
  const testing::Sample smaller(10, 80), later(20);
  team.save(11, smaller.held(), smaller.words());
  team.save(20);
  std::vector<HeldMemory> less = later.held();
  less.pop_back();
  team.save(21, less, later.words());
  const auto lines = [&](std::int64_t a, std::int64_t b) {
    std::string text;
    for (const auto& one : diff_checkpoints(directory, a, directory, b))
      text += one.name + ": " + one.what + "\n";
    return text;
  };
  EXPECT_EQ(lines(10, 10), "");
  EXPECT_EQ(lines(10, 11),
            "model.weight: float32 [12, 8] in the first, float32 [10, 8] in the second\n");
  EXPECT_EQ(lines(10, 20),
            "model.weight: 96 of 96 elements\nsampler.position: 1 of 1 elements\nmetadata epoch: 1 "
            "in the first, 2 in the second\n");
  EXPECT_EQ(lines(20, 21), "random.state: uint8 [3] in the first, not in the second\n");
  EXPECT_EQ(lines(21, 20), "random.state: uint8 [3] in the second, not in the first\n");
}

TEST(CheckpointCopy, pruning_leaves_the_newest) {
  const TestDirectory folder;
  SoloTeam team(folder.path(), {.keep = 9});
  for (const std::int64_t step : {1, 2, 3, 4}) team.save(step);
  EXPECT_THAT(team.directory().prune_to(2), ElementsAre(1, 2));
  EXPECT_THAT(team.directory().list(), ElementsAre(3, 4));
  CheckpointDirectory reader(folder.path(), {.read_only = true});
  EXPECT_THROW(reader.prune_to(1), Error);
}

}  // namespace
}  // namespace paceline
