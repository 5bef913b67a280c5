// Files that are damaged, hostile or not images: each error names the file and the reason, and
// nothing is printed.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/files/images/encoded_image.h"
#include "paceline/files/images/image_files.h"

#include "tests/files/images/encode.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline::images {
namespace {

void decode(const std::string& file, const DecodeOptions& options = {}) {
  EncodedImage(bytes_of(file), "n01/a.jpg", options).decode();
}

void expect_refused(const std::string& file, const std::vector<std::string>& words) {
  testing::internal::CaptureStderr();
  std::vector<std::string> all = words;
  all.push_back("n01/a.jpg");
  expect_error(ErrorCode::kCorrupt, all, [&] { decode(file); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(BadFiles, what_is_neither_a_jpeg_nor_a_png_is_refused_with_its_first_bytes) {
  expect_refused("", {"empty"});
  expect_refused("GIF89a", {"neither a JPEG nor a PNG", "47 49 46 38"});
  expect_refused("\x89", {"begins with 89"});
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n",
                 {"Git LFS", "git lfs pull"});
  expect_refused("<!DOCTYPE html><html>", {"a web page"});
}

TEST(BadFiles, a_jpeg_that_ends_early_is_an_error_wherever_it_ends) {
  for (const bool progressive : {false, true}) {
    const std::string whole = jpeg_of(sample_image({64, 48}), {.progressive = progressive});
    for (std::size_t size = 3; size + 16 < whole.size(); size += 1 + size / 8)
      expect_refused(whole.substr(0, size), {"not a valid JPEG"});
  }
}

TEST(BadFiles, a_jpeg_with_an_end_in_the_middle_of_its_pixels_is_an_error) {
  const std::string whole = jpeg_of(sample_image({64, 48}));
  expect_refused(whole.substr(0, whole.size() / 2) + "\xff\xd9", {"premature end of data"});
}

TEST(BadFiles, damaged_bytes_of_a_jpeg_are_an_error_or_give_an_image_but_nothing_else) {
  const std::string whole = jpeg_of(sample_image({64, 48}));
  for (std::size_t at = 2; at < whole.size(); at += 3) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    try {
      decode(damaged);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("n01/a.jpg"), std::string::npos);
    }
  }
}

TEST(BadFiles, a_png_that_ends_early_is_an_error_wherever_it_ends) {
  for (const bool interlaced : {false, true}) {
    const std::string whole = png_of(sample_image({64, 48}), {.interlaced = interlaced});
    for (std::size_t size = 8; size + 40 < whole.size(); size += 1 + size / 8)
      expect_refused(whole.substr(0, size), {"not a valid PNG", "ends at byte"});
  }
}

TEST(BadFiles, every_damaged_byte_of_a_pngs_pixels_is_found_by_its_checksum) {
  const std::string whole = png_of(sample_image({16, 12}));
  const std::size_t begin = whole.find("IDAT") + 4;
  for (std::size_t at = begin; at + 30 < whole.size(); at += 7) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    expect_refused(damaged, {"not a valid PNG"});
  }
}

TEST(BadFiles, a_bomb_is_refused_before_anything_of_its_size_is_allocated) {
  expect_error(ErrorCode::kInvalid, {"n01/a.jpg", "100000 x 100000", "178956970"},
               [] { decode(png_header(100'000, 100'000)); });
  expect_error(ErrorCode::kInvalid, {"2147483647 x 2147483647"},
               [] { decode(png_header(0x7fffffff, 0x7fffffff)); });
  std::string jpeg = jpeg_of(sample_image({8, 8}));
  const std::size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");  // 65,500 x 65,500
  expect_error(ErrorCode::kInvalid, {"65500 x 65500", "max_pixels"}, [&] { decode(jpeg); });
  expect_error(ErrorCode::kInvalid, {"8 x 8", "limit of 63"}, [] {
    decode(png_of(sample_image({8, 8})), {.max_pixels = 63});
  });
}

TEST(BadFiles, a_chunk_that_is_longer_than_its_file_takes_no_memory) {
  std::string file = png_of(sample_image({8, 8}), {.orientation = 6});
  file[file.find("eXIf") - 4] = '\x60';
  expect_refused(file, {"not a valid PNG"});
}

TEST(BadFiles, a_jpeg_of_a_thousand_scans_is_refused) {
  const std::string one = jpeg_of(sample_image({64, 64}), {.progressive = true, .components = 1});
  // The first scan, a thousand times.
  const std::size_t scan = one.find("\xff\xda");
  const std::size_t end = std::min(one.find("\xff\xda", scan + 2), one.find("\xff\xc4", scan + 2));
  std::string file = one.substr(0, end);
  for (int i = 0; i < 1000; ++i) file += one.substr(scan, end - scan);
  expect_refused(file + "\xff\xd9", {"more than 500 scans"});
}

TEST(ImageFile, reads_what_was_written) {
  const FreshDirectory folder;
  const std::string path = folder.write("a.jpg", "some bytes");
  const auto bytes = read_image_file(path, 10);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "some bytes");
  EXPECT_TRUE(read_image_file(folder.write("b.jpg", ""), 10).empty());
}

TEST(ImageFile, one_of_a_gigabyte_is_refused_by_its_size) {
  const FreshDirectory folder;
  const std::string path = folder.write("a.jpg", "\xff\xd8\xff");
  ASSERT_EQ(::truncate(path.c_str(), 1 << 30), 0);
  expect_error(ErrorCode::kInvalid, {path, "1073741824", "268435456"},
               [&] { read_image_file(path, DecodeOptions{}.max_file_bytes); });
}

TEST(ImageFile, what_cannot_be_read_is_an_error_with_its_path_and_reason) {
  const FreshDirectory folder;
  const auto read = [](const std::string& path) { read_image_file(path, 1000); };
  expect_error(ErrorCode::kSystem, {folder.file("gone.jpg"), "No such file"},
               [&] { read(folder.file("gone.jpg")); });
  ASSERT_EQ(::mkfifo(folder.file("pipe.jpg").c_str(), 0600), 0);
  expect_error(ErrorCode::kInvalid, {folder.file("pipe.jpg"), "not a regular file"},
               [&] { read(folder.file("pipe.jpg")); });
  expect_error(ErrorCode::kInvalid, {"not a regular file"}, [&] { read(folder.path()); });
  // The first page of a process is never mapped, so reading it fails like a broken disk.
  ASSERT_EQ(::symlink("/proc/self/mem", folder.file("broken.jpg").c_str()), 0);
  expect_error(ErrorCode::kSystem, {folder.file("broken.jpg"), "Input/output error"},
               [&] { read(folder.file("broken.jpg")); });
}

TEST(ImageFile, a_name_that_is_not_utf8_is_printed_with_its_bytes) {
  EXPECT_EQ(printable("caf\xc3\xa9/\xe4\xbd\xa0.jpg"), "caf\xc3\xa9/\xe4\xbd\xa0.jpg");
  EXPECT_EQ(printable("caf\xe9.jpg"), "caf\\xe9.jpg");
  EXPECT_EQ(printable("a\nb\x1b[2J\x7f"), "a\\x0ab\\x1b[2J\\x7f");
  EXPECT_EQ(printable("\xed\xa0\x80\xc0\xaf\xf4\x90\x80\x80\xe4\xbd"),
            "\\xed\\xa0\\x80\\xc0\\xaf\\xf4\\x90\\x80\\x80\\xe4\\xbd");
  const FreshDirectory folder;
  expect_error(ErrorCode::kSystem, {"caf\\xe9.jpg"},
               [&] { read_image_file(folder.file("caf\xe9.jpg"), 10); });
}

}  // namespace
}  // namespace paceline::images
