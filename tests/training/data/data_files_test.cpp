// Files of data sets, valid and damaged: every error names the file and the byte.

#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <zlib.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/data/dataset_files.h"
#include "paceline/training/data/image_dataset.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string idx(const std::vector<std::uint32_t>& shape, const std::string& elements) {
  std::string text = big_endian(0x0800U | static_cast<std::uint32_t>(shape.size()));
  for (const auto size : shape) text += big_endian(size);
  return text + elements;
}

std::string write_gzipped(const FreshDirectory& folder, const std::string& name,
                          const std::string& bytes) {
  const gzFile file = ::gzopen(folder.file(name).c_str(), "wb");
  ::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  ::gzclose(file);
  return folder.file(name);
}

void write_mnist(const FreshDirectory& folder,
                 const std::string& labels = std::string("\1\2\3", 3)) {
  for (const std::string part : {"train", "t10k"}) {
    folder.write(part + "-images-idx3-ubyte", idx({3, 2, 2}, "abcdefghijkl"));
    write_gzipped(folder, part + "-labels-idx1-ubyte.gz", idx({3}, labels));
  }
}

TEST(IdxFile, reads_plain_and_gzipped) {
  FreshDirectory folder;
  const auto text = idx({2, 1, 3}, "abcdef");
  for (const auto& path : {folder.write("a", text), write_gzipped(folder, "b.gz", text)}) {
    const auto file = read_idx(path, 3);
    EXPECT_THAT(file.sizes, ElementsAre(2, 1, 3));
    EXPECT_EQ(std::string(file.elements.begin(), file.elements.end()), "abcdef");
    EXPECT_EQ(file.path, path);
  }
}

TEST(IdxFile, every_truncation_is_refused_with_file_and_offset) {
  FreshDirectory folder;
  const auto text = idx({2, 1, 3}, "abcdef");
  for (std::size_t size = 0; size < text.size(); ++size) {
    const auto where = "ends at byte " + std::to_string(size);
    for (const bool gzipped : {false, true}) {
      const auto cut = text.substr(0, size);
      const auto path = gzipped ? write_gzipped(folder, "cut.gz", cut) : folder.write("cut", cut);
      expect_error(ErrorCode::kCorrupt, {path, where}, [&] { read_idx(path, 3); });
    }
  }
}

// Gzip members that follow each other, as in `cat a.gz b.gz`, and zeros as padding; anything else
// after a member is an error.
TEST(IdxFile, reads_gzip_members_one_after_the_other) {
  FreshDirectory folder;
  const std::string text = idx({2, 100, 1000}, std::string(200'000, 'x'));
  std::string packed;
  for (std::size_t at = 0; at < text.size(); at += 70'000) {
    const auto path = write_gzipped(folder, "part.gz", text.substr(at, 70'000));
    std::ifstream file(path, std::ios::binary);
    packed.append(std::istreambuf_iterator<char>(file), {});
  }
  for (const std::size_t zeros : {0, 1, 511, 100'000}) {
    const auto path = folder.write("all.gz", packed + std::string(zeros, '\0'));
    EXPECT_EQ(read_idx(path, 3).elements.size(), 200'000U);
  }
  for (const std::string end : {"\x1f", "padding"}) {
    const auto path = folder.write("all.gz", packed + end);
    expect_error(ErrorCode::kCorrupt, {path, "neither gzip data nor padding"},
                 [&] { read_idx(path, 3); });
  }
}

TEST(IdxFile, damaged_gzip_data_is_refused) {
  FreshDirectory folder;
  std::string elements;
  for (unsigned i = 0; i < 512; ++i) elements += static_cast<char>(i * i * 2654435761U >> 24);
  const auto path = write_gzipped(folder, "a.gz", idx({8, 8, 8}, elements));
  std::ifstream in(path, std::ios::binary);
  const std::string packed{std::istreambuf_iterator<char>(in), {}};
  // Bytes 3 to 9 of the gzip header hold flags, time and system, which do not change the data.
  // Neither do the bits that pad the last block to a byte, so a flip may leave the data unchanged.
  int unchanged = 0;
  for (std::size_t i = 10; i < packed.size(); ++i) {
    auto damaged = packed;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    const auto bad = folder.write("bad.gz", damaged);
    try {
      const auto file = read_idx(bad, 3);
      EXPECT_EQ(std::string(file.elements.begin(), file.elements.end()), elements);
      ++unchanged;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_THAT(error.what(), HasSubstr(bad));
    }
    const auto cut = folder.write("cut.gz", packed.substr(0, i));
    expect_error(ErrorCode::kCorrupt, {cut}, [&] { read_idx(cut, 3); });
  }
  EXPECT_LE(unchanged, 1);
}

TEST(IdxFile, another_type_size_or_length_is_refused) {
  FreshDirectory folder;
  const auto refused = [&](const std::string& text, const std::vector<std::string>& words) {
    const auto path = folder.write("x", text);
    expect_error(ErrorCode::kCorrupt, words, [&] { read_idx(path, 3); });
  };
  refused(idx({6}, "abcdef"), {"byte 0", "3 dimensions"});
  refused(big_endian(0x0d03) + big_endian(1), {"byte 0", "IDX file of bytes"});
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n", {"git lfs pull"});
  refused("<!DOCTYPE html>\n<html>", {"a web page"});
  refused("<htm", {"byte 0"});
  refused(idx({1, 0, 3}, ""), {"byte 8", "size 0"});
  refused(idx({0xffffffff, 0xffffffff, 0xffffffff}, "a"), {"byte 8", "size 4294967295"});
  refused(idx({2000000000, 1, 1}, "abc"), {"ends at byte 19"});
  refused(idx({1, 1, 3}, "abcd"), {"continues after byte 19"});
  expect_error(ErrorCode::kInvalid, {"neither absent nor absent.gz"},
               [&] { read_idx(folder.path() + "/absent", 3); });
}

TEST(Mnist, reads_a_folder_of_plain_and_gzipped_files) {
  FreshDirectory folder;
  write_mnist(folder);
  const auto data = load_mnist(folder.path(), Split::kTest);
  EXPECT_EQ(data.images.sizes(), (std::vector<std::int64_t>{3, 1, 2, 2}));
  EXPECT_EQ(data.classes.size(), 10U);
  EXPECT_EQ(data.images[2][0][1][0].item<int>(), 'k');
  EXPECT_EQ(data.labels[2].item<int>(), 3);
}

TEST(Mnist, the_fashion_mnist_of_the_system_is_read_where_it_is_installed) {
  if (!std::filesystem::exists(ImageDataset::kFashionMnistFolder)) {
    expect_error(ErrorCode::kInvalid, {ImageDataset::kFashionMnistFolder, "does not exist"},
                 [] { load_fashion_mnist(ImageDataset::kFashionMnistFolder, Split::kTest); });
    return;
  }
  const auto data = load_fashion_mnist(ImageDataset::kFashionMnistFolder, Split::kTest);
  EXPECT_EQ(data.images.sizes(), (std::vector<std::int64_t>{10000, 1, 28, 28}));
  EXPECT_EQ(data.labels.bincount().min().item<int>(), 1000);
}

TEST(Mnist, a_missing_folder_or_file_is_named) {
  FreshDirectory folder;
  expect_error(ErrorCode::kInvalid,
               {folder.path() + "/no", "does not exist", "dataset-fashion-mnist"},
               [&] { load_fashion_mnist(folder.path() + "/no", Split::kTrain); });
  expect_error(ErrorCode::kInvalid, {folder.path(), "train-images-idx3-ubyte.gz"},
               [&] { load_mnist(folder.path(), Split::kTrain); });
}

TEST(Mnist, a_label_out_of_range_is_refused_with_its_byte) {
  FreshDirectory folder;
  write_mnist(folder, "\1\2\12");
  expect_error(ErrorCode::kCorrupt, {"train-labels-idx1-ubyte.gz: byte 10: the label 10"},
               [&] { load_mnist(folder.path(), Split::kTrain); });
}

TEST(Mnist, images_and_labels_of_different_number_are_refused) {
  FreshDirectory folder;
  write_mnist(folder);
  write_gzipped(folder, "train-labels-idx1-ubyte.gz", idx({2}, "\1\2"));
  expect_error(ErrorCode::kCorrupt, {"has 2 labels", "has 3 images"},
               [&] { load_mnist(folder.path(), Split::kTrain); });
}

std::string cifar_records(int count, char label) {
  std::string text;
  for (int i = 0; i < count; ++i) text += label + std::string(3072, static_cast<char>('a' + i));
  return text;
}

TEST(Cifar10, reads_the_official_layout_also_in_its_usual_folder) {
  FreshDirectory folder;
  std::filesystem::create_directory(folder.path() + "/cifar-10-batches-bin");
  for (int i = 1; i <= 5; ++i) {
    std::string name = "cifar-10-batches-bin/data_batch_";
    name += std::to_string(i);  // GCC 14 warns falsely about operator+
    folder.write(name + ".bin", cifar_records(2, static_cast<char>(i)));
  }
  const auto data = load_cifar10(folder.path(), Split::kTrain);
  EXPECT_EQ(data.images.sizes(), (std::vector<std::int64_t>{10, 3, 32, 32}));
  EXPECT_EQ(data.labels[9].item<int>(), 5);
  EXPECT_EQ(data.images[9][2][31][31].item<int>(), 'b');
}

// More images than are read at once, and not a multiple of that number.
TEST(Cifar10, every_image_of_a_long_file_has_its_label) {
  constexpr int kCount = 2 * 256 + 3;
  FreshDirectory folder;
  std::string records;
  for (int i = 0; i < kCount; ++i) {
    records += static_cast<char>(i % 10);
    records += std::string(3072, static_cast<char>(i % 251));
  }
  folder.write("test_batch.bin", records);
  const auto data = load_cifar10(folder.path(), Split::kTest);
  ASSERT_EQ(data.size(), kCount);
  const auto* labels = data.labels.data_ptr<std::int64_t>();
  const auto* pixels = data.images.data_ptr<std::uint8_t>();
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(labels[i], i % 10);
    ASSERT_EQ(pixels[i * 3072], i % 251) << i;
    ASSERT_EQ(pixels[i * 3072 + 3071], i % 251) << i;
  }
}

TEST(Cifar10, damage_is_refused_with_file_and_byte) {
  FreshDirectory folder;
  const auto load = [&] { load_cifar10(folder.path(), Split::kTest); };
  expect_error(ErrorCode::kInvalid, {"has no test_batch.bin"}, load);
  folder.write("test_batch.bin", "");
  expect_error(ErrorCode::kInvalid, {"test_batch.bin", "empty"}, load);
  folder.write("test_batch.bin", cifar_records(2, 1).substr(0, 4000));
  expect_error(ErrorCode::kCorrupt, {"ends at byte 4000", "record of 3073 bytes"}, load);
  folder.write("test_batch.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:4d\n");
  expect_error(ErrorCode::kCorrupt, {"test_batch.bin: ", "git lfs pull"}, load);
  folder.write("test_batch.bin", cifar_records(2, 1) + cifar_records(1, '\xff'));
  expect_error(ErrorCode::kCorrupt, {"test_batch.bin: byte 6146: the label 255"}, load);
  expect_error(ErrorCode::kInvalid, {"/no"},
               [&] { load_cifar10(folder.path() + "/no", Split::kTest); });
}

}  // namespace
}  // namespace paceline::data
