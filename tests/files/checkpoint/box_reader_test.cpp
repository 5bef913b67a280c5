// Whatever boxes the files contain and whatever boxes are wanted: the elements are correct, little
// else is read, and damage is found when the damaged bytes are read.

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include <gmock/gmock.h>

#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/box_plan.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using harness::Says;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TestDirectory;

// Element i of a tensor in row-major order is i + the number of its tensor.
std::int32_t value_of(std::size_t tensor, std::int64_t element) {
  return static_cast<std::int32_t>(element + 1'000'000 * static_cast<std::int64_t>(tensor));
}

std::vector<std::int32_t> values_of(std::size_t tensor, const std::vector<std::int64_t>& shape,
                                    const Box& box) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(num_elements(box)));
  for_common_runs(box, whole_box(shape), box,
                  [&](std::int64_t first, std::int64_t to, std::int64_t count) {
                    for (std::int64_t i = 0; i < count; ++i)
                      values[static_cast<std::size_t>(to + i)] = value_of(tensor, first + i);
                  });
  return values;
}

// Writes the boxes `held` (one list for each rank) into files in a folder.
Manifest write(const std::string& folder, const std::vector<std::vector<HeldBox>>& held,
               std::int64_t step = 5, const std::string& run = "a") {
  const BoxPlan plan = plan_boxes(held, std::vector<bool>(held.size(), true));
  Manifest manifest{.step = step,
                    .run = run,
                    .world_size = static_cast<int>(held.size()),
                    .files = {},
                    .tensors = plan.tensors,
                    .metadata = {}};
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    if (plan.of_rank[rank].empty()) continue;
    std::vector<std::vector<std::int32_t>> memory;
    std::uint64_t bytes = 0;
    for (const BoxToWrite& one : plan.of_rank[rank])
      memory.push_back(values_of(one.tensor, plan.tensors[one.tensor].shape, one.box));
    for (const auto& part : memory) bytes += part.size() * sizeof(std::int32_t);
    const auto number = plan.file_of_rank[rank];
    BoxFileWriter file(FileSystem::real(), folder + "/" + box_file_name(number, plan.num_files),
                       {step, run, number}, bytes);
    for (const auto& part : memory) file.add(std::as_bytes(std::span(part)));
    manifest.files.push_back(file.finish());
  }
  return manifest;
}

std::vector<HeldBox> rows(const std::string& name, const std::vector<std::int64_t>& shape,
                          std::int64_t begin, std::int64_t end) {
  Box box = whole_box(shape);
  box.offsets[0] = begin;
  box.sizes[0] = end - begin;
  return {{name, Dtype::kInt32, shape, box}};
}

TEST(BoxReader, any_box_comes_out_of_any_boxes) {
  std::mt19937 random(harness::random_seed());
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  for (int round = 0; round < 60; ++round) {
    const TestDirectory folder;
    std::vector<std::vector<HeldBox>> held(static_cast<std::size_t>(1 + below(4)));
    std::vector<std::vector<std::int64_t>> shapes;
    for (int tensor = 0; tensor < 3; ++tensor) {
      auto& shape = shapes.emplace_back(static_cast<std::size_t>(below(4)));
      for (auto& size : shape) size = 1 + below(tensor == 0 ? 90 : 9);
      const std::int64_t all = num_elements(shape);
      for (std::size_t rank = 0; rank < held.size(); ++rank) {
        const auto n = static_cast<std::int64_t>(held.size()), r = static_cast<std::int64_t>(rank);
        const std::int64_t begin = all * r / n, end = all * (r + 1) / n;
        for (const Box& box : boxes_of_run(shape, begin, end - begin))
          held[rank].push_back({"t" + std::to_string(tensor), Dtype::kInt32, shape, box});
      }
    }
    const Manifest manifest = write(folder.path(), held);
    BoxReader reader(FileSystem::real(), folder.path(), manifest);
    std::vector<std::vector<std::int32_t>> found, expected;
    std::vector<WantedBox> wanted;
    for (int i = 0; i < 12; ++i) {
      const auto tensor = static_cast<std::size_t>(below(3));
      Box box = whole_box(shapes[tensor]);
      for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
        box.offsets[dim] = below(box.sizes[dim]);
        box.sizes[dim] = 1 + below(box.sizes[dim] - box.offsets[dim]);
      }
      expected.push_back(values_of(tensor, shapes[tensor], box));
      found.emplace_back(expected.back().size());
      wanted.push_back({"t" + std::to_string(tensor), box, nullptr});
    }
    for (std::size_t i = 0; i < wanted.size(); ++i)
      wanted[i].to = reinterpret_cast<std::byte*>(found[i].data());
    reader.read(wanted);
    EXPECT_EQ(found, expected);
  }
}

// Reads rows, columns, and a run of elements like that of a sharded optimizer.
TEST(BoxReader, reads_what_is_wanted_and_at_most_a_twentieth_more) {
  const TestDirectory folder;
  const std::vector<std::int64_t> shape = {1536, 1024};  // 6 MiB
  std::vector<std::vector<HeldBox>> held;
  for (std::int64_t rank = 0; rank < 3; ++rank)
    held.push_back(rows("w", shape, 512 * rank, 512 * (rank + 1)));
  const Manifest manifest = write(folder.path(), held);
  const std::vector<std::vector<Box>> wishes = {
      {{{100, 0}, {333, 1024}}}, {{{0, 512}, {1536, 512}}},
      {{{0, 256}, {1536, 256}}}, boxes_of_run(shape, 300'001, 400'003),
      {whole_box(shape)},
  };
  for (const auto& boxes : wishes) {
    std::vector<std::vector<std::int32_t>> memory;
    std::vector<WantedBox> wanted;
    std::uint64_t bytes = 0;
    for (const Box& box : boxes) {
      memory.emplace_back(static_cast<std::size_t>(num_elements(box)));
      wanted.push_back({"w", box, reinterpret_cast<std::byte*>(memory.back().data())});
      bytes += 4 * memory.back().size();
    }
    BoxReader reader(FileSystem::real(), folder.path(), manifest);
    reader.read(wanted);
    EXPECT_GE(reader.bytes_read(), bytes);
    EXPECT_LE(static_cast<double>(reader.bytes_read()), 1.05 * static_cast<double>(bytes))
        << to_string(boxes[0]);
    for (std::size_t i = 0; i < boxes.size(); ++i)
      EXPECT_EQ(memory[i], values_of(0, shape, boxes[i]));
  }
}

class SpoiledBoxes : public ::testing::Test {
 protected:
  SpoiledBoxes() : manifest_(write(folder_.path(), held())) {}

  static std::vector<std::vector<HeldBox>> held() {
    return {rows("w", kShape, 0, 100), rows("w", kShape, 100, 200)};
  }
  std::string file(int number) const {
    return folder_ / box_file_name(static_cast<std::uint32_t>(number), 2);
  }
  Error refusal() {
    return error_of([&] { read(whole_box(kShape)); });
  }
  void read(const Box& box) {
    std::vector<std::int32_t> memory(static_cast<std::size_t>(num_elements(box)));
    const WantedBox wanted{"w", box, reinterpret_cast<std::byte*>(memory.data())};
    BoxReader(FileSystem::real(), folder_.path(), manifest_).read(std::span(&wanted, 1));
    EXPECT_EQ(memory, values_of(0, kShape, box));
  }
  static void flip(const std::string& path, std::int64_t at) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at);
    const int byte = stream.get();
    stream.seekp(at);
    stream.put(static_cast<char>(byte ^ 4));
  }

  static inline const std::vector<std::int64_t> kShape = {200, 500};  // 200,000 bytes in each file
  const TestDirectory folder_;
  const Manifest manifest_;
};

TEST_F(SpoiledBoxes, a_flipped_bit_is_found_where_it_is_read_and_only_there) {
  flip(file(1), 150'000);
  EXPECT_THAT(refusal().what(),
              Says("checkpoint.sum_differs", "boxes-00001-of-00002.bin", 147456, 151552));
  read({{0, 0}, {150, 500}});
}

TEST_F(SpoiledBoxes, a_flipped_bit_in_the_sums_or_the_trailer_is_found) {
  for (const std::int64_t at : {200'001, 200'250}) {
    flip(file(0), at);
    EXPECT_THAT(refusal().what(), Says("checkpoint.digest_of_sums_differs"));
    flip(file(0), at);
  }
  read(whole_box(kShape));
}

TEST_F(SpoiledBoxes, a_file_that_is_missing_is_named) {
  fs::remove(file(1));
  EXPECT_THAT(refusal().what(), Says("checkpoint.file_missing", file(1)));
}

TEST_F(SpoiledBoxes, a_file_that_is_cut_or_longer_is_named) {
  fs::resize_file(file(0), 1000);
  EXPECT_THAT(refusal().what(), Says("checkpoint.file_size_differs", file(0), 200260, 1000));
  fs::resize_file(file(0), 300'000);
  EXPECT_THAT(refusal().what(), Says("checkpoint.file_size_differs", file(0), 200260, 300000));
}

TEST_F(SpoiledBoxes, files_that_were_swapped_are_named) {
  fs::rename(file(0), file(0) + ".aside");
  fs::rename(file(1), file(0));
  fs::rename(file(0) + ".aside", file(1));
  EXPECT_THAT(refusal().what(),
              ::testing::AllOf(HasSubstr("boxes-00000-of-00002.bin: "),
                               Says("checkpoint.file_of_another", 1, 5, "a", 0, 5, "a")));
}

TEST_F(SpoiledBoxes, a_file_of_another_step_or_run_is_named) {
  const TestDirectory other;
  write(other.path(), held(), 5, "b");
  fs::copy_file(other / "boxes-00001-of-00002.bin", file(1), fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal().what(), Says("checkpoint.file_of_another", 1, 5, "b"));
  EXPECT_EQ(refusal().code(), ErrorCode::kCorrupt);
}

TEST_F(SpoiledBoxes, what_the_checkpoint_has_not_is_an_error_of_the_caller) {
  EXPECT_EQ(error_of([&] { read({{150, 0}, {51, 1}}); }).code(), ErrorCode::kInvalid);
  EXPECT_EQ(error_of([&] { read({{0}, {1}}); }).code(), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace paceline
