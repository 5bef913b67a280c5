#include "paceline/training/data/image_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/data/distributed_sampler.h"

#include "tests/files/images/encode.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline::data {
namespace {

using harness::Says;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Twelve images of two classes: image i is grey with value 20 i; odd ones are JPEG, even ones PNG.
class ImageFolderTest : public testing::Test {
 protected:
  ImageFolderTest() {
    for (const char* name : {"cats", "dogs"}) std::filesystem::create_directory(folder_.file(name));
    for (int i = 0; i < 12; ++i) {
      images::Image image({40 + i, 30});
      std::ranges::fill(image.bytes(), static_cast<std::uint8_t>(20 * i));
      folder_.write(path(i), i % 2 == 0 ? images::png_of(image) : images::jpeg_of(image));
    }
  }
  static std::string path(int i) {
    return fmt::format("{}/{:02}.{}", i < 6 ? "cats" : "dogs", i, i % 2 == 0 ? "png" : "jpg");
  }
  ImageFolderOptions options() const {
    return {.pipeline = {.size = {16, 12}, .framing = images::Framing::kWhole}};
  }
  ImageFolderOptions random_options() const {
    ImageFolderOptions options{.pipeline = {.size = {16, 12},
                                            .framing = images::Framing::kRandomResizedCrop,
                                            .flip_probability = 0.5,
                                            .jitter = {.brightness = 0.5}},
                               .seed = 3};
    return options;
  }
  const FreshDirectory folder_;
};

TEST_F(ImageFolderTest, gives_images_and_the_labels_of_their_folders) {
  const ImageFolder dataset(folder_.path(), options());
  EXPECT_EQ(dataset.size(), 12);
  EXPECT_THAT(dataset.classes(), ElementsAre("cats", "dogs"));
  for (const bool channels_last : {false, true}) {
    ImageFolderOptions form = options();
    form.channels_last = channels_last;
    const auto batch =
        ImageFolder(folder_.path(), form).batch(std::vector<std::int64_t>{7, 0, 3}, 0);
    EXPECT_EQ(batch[0].sizes(), (std::vector<std::int64_t>{3, 3, 12, 16}));
    EXPECT_TRUE(batch[0].is_contiguous(channels_last ? at::MemoryFormat::ChannelsLast
                                                     : at::MemoryFormat::Contiguous));
    const auto grey = torch::tensor({140, 0, 60}).view({3, 1, 1, 1}).to(torch::kFloat) / 255;
    EXPECT_TRUE(batch[0].allclose(grey.expand({3, 3, 12, 16}), 0, 1.5 / 255));
    EXPECT_TRUE(batch[1].equal(torch::tensor({1, 0, 0})));
  }
}

TEST_F(ImageFolderTest, a_loader_gives_the_same_batches_by_any_number_of_threads) {
  const auto dataset = std::make_shared<ImageFolder>(folder_.path(), random_options());
  std::vector<std::vector<at::Tensor>> runs;
  for (const int threads : {0, 1, 3}) {
    DataLoader loader(dataset, DistributedSampler(12, 1, 0),
                      {.batch_size = 5, .num_threads = threads});
    auto& run = runs.emplace_back();
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      auto running = loader.epoch(epoch);
      while (auto batch = running.next()) run.push_back(batch->data);
    }
  }
  for (std::size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_TRUE(runs[0][i].equal(runs[1][i]) && runs[0][i].equal(runs[2][i]));
  }
  EXPECT_FALSE(runs[0][0].equal(runs[0][3]));
}

TEST_F(ImageFolderTest, an_epoch_resumed_in_the_middle_by_more_ranks_has_the_same_images) {
  const auto dataset = std::make_shared<ImageFolder>(folder_.path(), random_options());
  std::map<std::int64_t, at::Tensor> whole;
  DataLoader loader(dataset, DistributedSampler(12, 1, 0), {.global_batch_size = 4});
  auto running = loader.epoch(1);
  while (auto batch = running.next()) {
    for (std::size_t i = 0; i < batch->indices.size(); ++i)
      whole[batch->indices[i]] = batch->data[static_cast<std::int64_t>(i)];
  }
  std::size_t seen = 0;
  for (const int rank : {0, 1}) {
    DataLoader resumed(dataset, DistributedSampler(12, 2, rank), {.global_batch_size = 4});
    auto running = resumed.epoch(1, 4);
    while (auto batch = running.next()) {
      for (std::size_t i = 0; i < batch->indices.size(); ++i, ++seen) {
        EXPECT_TRUE(whole.at(batch->indices[i]).equal(batch->data[static_cast<std::int64_t>(i)]));
      }
    }
  }
  EXPECT_EQ(seen, 8U);
}

TEST_F(ImageFolderTest, a_bad_file_ends_the_loaders_next_with_its_name) {
  const ImageFolder dataset(folder_.path(), options());
  const auto take = [&](int i) { dataset.batch(std::vector<std::int64_t>{i}, 0); };
  folder_.write(path(3), "\xff\xd8\xff\xe0 no image");
  expect_error(ErrorCode::kCorrupt, {folder_.file(path(3)), "not a valid JPEG"}, [&] { take(3); });
  std::filesystem::remove(folder_.file(path(4)));
  expect_error(ErrorCode::kSystem, {folder_.file(path(4)), "No such file"}, [&] { take(4); });
  std::filesystem::remove(folder_.file(path(5)));
  ASSERT_EQ(::symlink("/proc/self/mem", folder_.file(path(5)).c_str()), 0);
  expect_error(ErrorCode::kSystem, {folder_.file(path(5)), "Input/output error"}, [&] { take(5); });
  DataLoader loader(std::make_shared<ImageFolder>(folder_.path(), options()),
                    std::vector<std::int64_t>{4}, {.num_threads = 2});
  auto running = loader.epoch(0);
  expect_error(ErrorCode::kSystem, {folder_.file(path(5))}, [&] { running.next(); });
}

TEST_F(ImageFolderTest, a_bad_file_is_skipped_and_counted_when_asked) {
  ImageFolderOptions form = options();
  form.skip_bad_images = true;
  const ImageFolder dataset(folder_.path(), form);
  folder_.write(path(3), "no image");
  std::filesystem::remove(folder_.file(path(4)));
  testing::internal::CaptureStderr();
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto batch = dataset.batch(std::vector<std::int64_t>{2, 3, 11}, epoch);
    // Image 5 replaces image 3, because image 4 is bad as well.
    EXPECT_NEAR(batch[0][1][0][0][0].item<double>(), 100 / 255.0, 1.5 / 255);
    EXPECT_TRUE(batch[1].equal(torch::tensor({0, 0, 1})));
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(folder_.file(path(3))));
  EXPECT_EQ(dataset.num_skipped(), 4);
  EXPECT_THAT(dataset.skipped(), ElementsAre(folder_.file(path(3)), folder_.file(path(4))));
}

TEST_F(ImageFolderTest, a_folder_of_bad_files_is_an_error_even_when_they_are_skipped) {
  ImageFolderOptions form = options();
  form.skip_bad_images = true;
  for (int i = 0; i < 12; ++i) folder_.write(path(i), "no image");
  const ImageFolder dataset(folder_.path(), form);
  expect_error(ErrorCode::kCorrupt, {folder_.path(), "12 files in a row"},
               [&] { dataset.batch(std::vector<std::int64_t>{2}, 0); });
}

TEST_F(ImageFolderTest, a_file_replaced_in_the_middle_of_an_epoch_is_taken_as_it_is_then) {
  DataLoader loader(std::make_shared<ImageFolder>(folder_.path(), options()),
                    std::vector<std::int64_t>{0, 1}, {.batch_size = 1, .num_threads = 0});
  auto running = loader.epoch(0);
  ASSERT_TRUE(running.next());
  images::Image other({300, 200});
  std::ranges::fill(other.bytes(), std::uint8_t{250});
  folder_.write("new", images::png_of(other));
  std::filesystem::rename(folder_.file("new"), folder_.file(path(1)));
  EXPECT_NEAR(running.next()->data[0][0][0][0].item<double>(), 250 / 255.0, 1e-6);
}

TEST_F(ImageFolderTest, types_that_are_not_decoded_are_warned_of) {
  folder_.write("cats/x.webp", "RIFF");
  testing::internal::CaptureStderr();
  EXPECT_EQ(ImageFolder(folder_.path(), options()).size(), 12);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Says("dataset.files_left_out", 1));
}

}  // namespace
}  // namespace paceline::data
