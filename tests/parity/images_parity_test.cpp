// The same pixels as Pillow's: decoding, resizing, cropping and changing colours. Each is compared
// byte for byte, with no tolerance; images_reference.py says what it leaves in which file.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "paceline/core/check.h"
#include "paceline/images/encoded_image.h"
#include "paceline/images/image_file.h"
#include "paceline/images/resample.h"

#include "tests/harness/fresh_directory.h"

namespace paceline::images {
namespace {

namespace fs = std::filesystem;

// Without Pillow there is nothing to compare with, and the test has failed.
testing::AssertionResult run_reference(const std::string& what, const FreshDirectory& folder) {
  const FreshDirectory apart;
  const std::string log = apart.file("log");
  const std::string command = fmt::format("/usr/bin/python3 '{}' {} '{}' >'{}' 2>&1",
                                          PACELINE_IMAGES_REFERENCE, what, folder.path(), log);
  if (std::system(command.c_str()) == 0) return testing::AssertionSuccess();
  std::ifstream in(log);
  return testing::AssertionFailure()
         << "images_reference.py " << what << " (it needs python3-pil and python3-numpy):\n"
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

// The largest difference of a byte; -1 for another size.
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

// Calls `body` for each FILE.pixels of the folder with FILE; there must be some.
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

// The parts of a name's end, as ".5.7" or ".5x7".
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

}  // namespace
}  // namespace paceline::images
