#include "paceline/files/checkpoint/checkpoint_copy.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/safetensors.h"

#include "tests/files/checkpoint/sample_snapshot.h"
#include "tests/files/checkpoint/test_directory.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_sample;
using ::testing::HasSubstr;
using testing::save_sample;
using testing::TestDirectory;

TEST(CheckpointCopy, an_exported_file_is_safetensors_and_imports_as_the_same_checkpoint) {
  const TestDirectory folder, other;
  CheckpointDirectory directory(folder.path());
  save_sample(directory, 42, "run-a");
  const std::string file = folder / "all.safetensors";
  const std::uint64_t bytes = export_safetensors(directory, 42, file);
  EXPECT_EQ(bytes, fs::file_size(file));
  const auto read = read_plain_file(FileSystem::real(), file, 1 << 20);
  const Safetensors parsed = parse_safetensors(read, file);
  EXPECT_EQ(parsed.tensors.size(), 3U);
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
  EXPECT_EQ(parsed.metadata.at("paceline_step"), "42");

  CheckpointDirectory into(other.path());
  EXPECT_EQ(import_safetensors(file, into), 42);
  const LoadedCheckpoint loaded = into.load(42);
  expect_sample(loaded);
  EXPECT_EQ(loaded.snapshot.run, "run-a");
  EXPECT_TRUE(diff_checkpoints(directory, 42, into, 42).empty());
  EXPECT_THAT(error_of([&] { import_safetensors(file, into); }).what(),
              HasSubstr("has a checkpoint of step 42 already"));
}

TEST(CheckpointCopy, weights_alone_have_their_names_in_the_model) {
  const TestDirectory folder;
  CheckpointDirectory directory(folder.path());
  save_sample(directory, 1);
  const std::string file = folder / "weights.safetensors";
  export_safetensors(directory, 1, file, {.weights_only = true});
  const auto read = read_plain_file(FileSystem::real(), file, 1 << 20);
  const Safetensors parsed = parse_safetensors(read, file);
  ASSERT_EQ(parsed.tensors.size(), 1U);
  EXPECT_EQ(parsed.tensors[0].name, "weight");
  EXPECT_EQ(parsed.metadata.size(), 1U);
}

TEST(CheckpointCopy, a_damaged_checkpoint_or_file_is_refused_and_leaves_nothing) {
  const TestDirectory folder, other;
  CheckpointDirectory directory(folder.path()), into(other.path());
  save_sample(directory, 1);
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
  CheckpointDirectory directory(folder.path()), into(other.path());
  save_sample(directory, 5, "r");
  merge_checkpoint(directory, 5, into);
  expect_sample(into.load(5));
  EXPECT_EQ(into.read_manifest(5).run, "r");
  EXPECT_EQ(into.read_manifest(5).files.size(), 1U);
}

TEST(CheckpointCopy, differences_are_listed_by_tensor) {
  const TestDirectory folder;
  CheckpointDirectory directory(folder.path(), {.keep = 9});
  save_sample(directory, 10);
  const testing::SampleSnapshot other(10, 80), later(20);
  directory.save(11, *other);
  directory.save(20, *later);
  Snapshot less = *later;
  less.tensors.pop_back();
  directory.save(21, less);
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
  CheckpointDirectory directory(folder.path(), {.keep = 9});
  for (const std::int64_t step : {1, 2, 3, 4}) save_sample(directory, step);
  EXPECT_THAT(directory.prune_to(2), ElementsAre(1, 2));
  EXPECT_THAT(directory.list(), ElementsAre(3, 4));
  CheckpointDirectory reader(folder.path(), {.read_only = true});
  EXPECT_THROW(reader.prune_to(1), Error);
}

}  // namespace
}  // namespace paceline
