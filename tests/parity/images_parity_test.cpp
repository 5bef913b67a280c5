// Compares pixels with those of Pillow and torchvision: decoding, resizing, cropping, changing
// colours, evaluation. All are compared byte for byte, or float for float, without a tolerance;
// random results are compared by their distribution. images_reference.py describes the files that
// it writes.

#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "paceline/engine/core/check.h"
#include "paceline/files/images/encoded_image.h"
#include "paceline/files/images/image_files.h"
#include "paceline/files/images/image_pipeline.h"
#include "paceline/files/images/resample.h"

#include "tests/harness/fresh_directory.h"

namespace paceline::images {
namespace {

namespace fs = std::filesystem;

// Without Pillow there is nothing to compare with, and the test fails.
testing::AssertionResult run_reference(const std::string& what, const FreshDirectory& folder) {
  const FreshDirectory apart;
  const std::string log = apart.file("log");
  const std::string command = fmt::format("/usr/bin/python3 '{}' {} '{}' >'{}' 2>&1",
                                          PACELINE_IMAGES_REFERENCE, what, folder.path(), log);
  if (std::system(command.c_str()) == 0) return testing::AssertionSuccess();
  std::ifstream in(log);
  return testing::AssertionFailure()
         << "images_reference.py " << what << " (it needs python3-pil and python3-torchvision):\n"
         << std::string(std::istreambuf_iterator<char>(in), {});
}

Image read_pixels(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::uint32_t size[2] = {};
  in.read(reinterpret_cast<char*>(size), sizeof size);
  Image image({static_cast<int>(size[0]), static_cast<int>(size[1])});
  in.read(reinterpret_cast<char*>(image.bytes().data()),
          static_cast<std::streamsize>(image.bytes().size()));
  check(in.good(), "{} is cut", path.string());
  return image;
}

// The largest difference of a byte; -1 if the sizes differ.
int difference(const Image& a, const Image& b) {
  if (a.size() != b.size()) return -1;
  int largest = 0;
  for (std::size_t i = 0; i < a.bytes().size(); ++i)
    largest = std::max(largest, std::abs(a.bytes()[i] - b.bytes()[i]));
  return largest;
}

struct Opened {
  explicit Opened(const fs::path& path)
      : bytes(read_image_file(path.string(), 1 << 30)), image(bytes, path.string()) {}
  std::vector<std::byte> bytes;
  EncodedImage image;
};

// Calls `body` for each FILE.pixels of the folder, with FILE; the folder must have some.
template <class Body>
void for_each_result(const FreshDirectory& folder, Body body) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".pixels") continue;
    body(fs::path(entry.path()).replace_extension(), read_pixels(entry.path()));
    ++count;
  }
  EXPECT_GT(count, 20);
}

// The numbers at the end of a name, as in ".5.7" or ".5x7".
std::vector<int> numbers_behind(const std::string& name, const std::string& file) {
  std::vector<int> numbers;
  const std::string rest = name.substr(name.find(file) + file.size());
  for (std::size_t at = 0; at < rest.size();) {
    std::size_t used = 0;
    numbers.push_back(std::stoi(rest.substr(at + 1), &used));
    at += 1 + used;
  }
  return numbers;
}

TEST(ImagesParity, every_kind_of_file_is_decoded_as_by_pillow) {
  const FreshDirectory folder;
  ASSERT_TRUE(run_reference("decode", folder));
  for_each_result(folder, [](const fs::path& file, const Image& expected) {
    EXPECT_EQ(difference(Opened(file).image.decode(), expected), 0) << file.filename();
  });
}

TEST(ImagesParity, images_are_resized_as_by_pillow) {
  const FreshDirectory folder;
  ASSERT_TRUE(run_reference("resize", folder));
  for_each_result(folder, [](const fs::path& file, const Image& expected) {
    const Image image = Opened(fs::path(file).replace_extension()).image.decode();
    EXPECT_EQ(difference(resize(image, expected.size()), expected), 0) << file.filename();
  });
}

TEST(ImagesParity, an_orientation_is_found_in_the_places_where_pillow_finds_it) {
  const FreshDirectory folder;
  ASSERT_TRUE(run_reference("turned", folder));
  for_each_result(folder, [](const fs::path& file, const Image& expected) {
    EXPECT_EQ(difference(Opened(file).image.decode(), expected), 0) << file.filename();
  });
}

TEST(ImagesParity, a_part_decoded_alone_and_resized_is_as_by_pillow) {
  const FreshDirectory folder;
  ASSERT_TRUE(run_reference("crop", folder));
  for_each_result(folder, [&](const fs::path& file, const Image& expected) {
    const auto numbers = numbers_behind(file.filename().string(), "crop.jpg");
    Opened opened(folder.file("crop.jpg"));
    const Image part = opened.image.decode({numbers[0], numbers[1], numbers[2], numbers[3]});
    EXPECT_EQ(difference(resize(part, expected.size()), expected), 0) << file.filename();
  });
}

TEST(ImagesParity, colours_are_changed_as_by_pillow) {
  const FreshDirectory folder;
  ASSERT_TRUE(run_reference("colour", folder));
  const Image original = Opened(folder.file("colour.png")).image.decode();
  for_each_result(folder, [&](const fs::path& file, const Image& expected) {
    const std::string way = file.filename().string().substr(std::string("colour.png.").size());
    const double factor = std::stod(way.substr(way.find('.') + 1));
    Image image = resize(original, original.size());
    if (way.starts_with("brightness")) adjust_brightness(image, factor);
    if (way.starts_with("contrast")) adjust_contrast(image, factor);
    if (way.starts_with("saturation")) adjust_saturation(image, factor);
    if (way.starts_with("hue")) adjust_hue(image, factor);
    EXPECT_EQ(difference(image, expected), 0) << way;
  });
}

TEST(ImagesParity, evaluation_has_the_floats_of_torchvision) {
  const FreshDirectory folder;
  ASSERT_TRUE(run_reference("evaluate", folder));
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".floats") continue;
    const fs::path path = fs::path(entry.path()).replace_extension();
    const std::string file = path.string().substr(0, path.string().find(".jpg") + 4);
    const auto numbers = numbers_behind(path.string(), ".jpg");
    const ImagePipeline pipeline({.size = {numbers[1], numbers[2]},
                                  .shorter_side = numbers[0],
                                  .mean = kImageNetMean,
                                  .std = kImageNetStd,
                                  .reducing_gap = 0});
    std::vector<float> expected(static_cast<std::size_t>(pipeline.num_values())), seen = expected;
    std::ifstream in(entry.path(), std::ios::binary);
    in.read(reinterpret_cast<char*>(expected.data()),
            static_cast<std::streamsize>(expected.size() * sizeof(float)));
    ASSERT_TRUE(in.good());
    pipeline.apply(read_image_file(file, 1 << 30), file, seen.data(), false, 0, 0);
    EXPECT_TRUE(seen == expected) << path.filename();
    ++count;
  }
  EXPECT_EQ(count, 24);
}

TEST(ImagesParity, a_folder_is_listed_as_by_torchvision) {
  const FreshDirectory folder;
  ASSERT_TRUE(run_reference("folder", folder));
  std::ifstream in(folder.file("samples.txt"));
  const std::string expected(std::istreambuf_iterator<char>(in), {});
  const ImageList list(folder.file("tree"));
  std::string seen;
  for (std::int64_t i = 0; i < list.size(); ++i)
    seen += fmt::format("{} {}\n", list.label(i), list.path(i));
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(list.size(), 13);
}

// Both draw 8,000 times, each with its own random numbers: the means agree within 6 standard
// errors, and the deviations within 5 %.
TEST(ImagesParity, random_regions_are_distributed_as_torchvisions) {
  const FreshDirectory folder;
  ASSERT_TRUE(run_reference("draws", folder));
  std::ifstream in(folder.file("draws.txt"));
  std::string what;
  Size size;
  int count = 0;
  while (in >> what >> size.width >> size.height) {
    std::array<double, 4> means, deviations, sums{}, squares{};
    for (double& value : means) in >> value;
    for (double& value : deviations) in >> value;
    SampleRandom random(3, 0, count++);
    int drawn = 0;
    for (int i = 0; i < 4000; ++i) {
      const Region region = what == "crop"
                                ? random_resized_crop(size, {0.08, 1}, {3.0 / 4, 4.0 / 3}, random)
                                : random_erasing(size, {.probability = 1}, random);
      if (region.width == 0) continue;
      ++drawn;
      const std::array<int, 4> values = {region.y, region.x, region.height, region.width};
      for (std::size_t k = 0; k < 4; ++k) {
        sums[k] += values[k];
        squares[k] += static_cast<double>(values[k]) * values[k];
      }
    }
    for (std::size_t k = 0; k < 4; ++k) {
      const double mean = sums[k] / drawn, deviation = std::sqrt(squares[k] / drawn - mean * mean);
      const double error = deviations[k] * std::sqrt(2.0 / drawn);
      EXPECT_NEAR(mean, means[k], 6 * error + 1e-9) << what << " " << size.width << " " << k;
      EXPECT_NEAR(deviation, deviations[k], 0.05 * deviations[k] + 1e-9) << what << " " << k;
    }
  }
  EXPECT_EQ(count, 8);
}

}  // namespace
}  // namespace paceline::images
