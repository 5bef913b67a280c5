#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "paceline/files/checkpoint/file_system.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/real_file_system.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using ::testing::ElementsAre;
using testing::error_of;
using testing::RealFileSystem;
using testing::TestDirectory;

// Records the sizes of writes that bypass the kernel's cache, and of those that do not.
class NotingFileSystem : public RealFileSystem {
 public:
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    const ssize_t count = passes_ ? write_past(fd, bytes) : real().write(fd, bytes);
    if (count > 0) (passes_ ? past : through).push_back(static_cast<std::size_t>(count));
    return count;
  }
  bool pass_cache(int, bool passes) override {
    passes_ = passes;
    return true;
  }
  std::vector<std::size_t> past, through;

 protected:
  virtual ssize_t write_past(int fd, std::span<const std::byte> bytes) {
    return real().write(fd, bytes);
  }

 private:
  bool passes_ = false;
};

// Bytes that begin at a page boundary.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size) : room_(size + kPage) {
    void* begin = room_.data();
    std::size_t space = room_.size();
    bytes_ = {static_cast<std::byte*>(std::align(kPage, size, begin, space)), size};
    for (std::size_t i = 0; i < size; ++i) bytes_[i] = static_cast<std::byte>(i % 251);
  }
  std::span<const std::byte> bytes() const { return bytes_; }
  static constexpr std::size_t kPage = 4096;

 private:
  std::vector<std::byte> room_;
  std::span<std::byte> bytes_;
};

constexpr std::size_t kSize = (2 << 20) + 5000;

void expect_written(FileSystem& files, std::span<const std::byte> bytes) {
  const TestDirectory folder;
  const std::string path = folder / "file";
  PlainFileWriter writer(files, path, bytes.size());
  writer.write(bytes);
  writer.finish();
  EXPECT_TRUE(std::ranges::equal(read_plain_file(FileSystem::real(), path, kSize), bytes));
}

TEST(PlainFile, whole_blocks_of_a_long_piece_go_past_the_cache) {
  const AlignedBytes pages(kSize);
  NotingFileSystem files;
  expect_written(files, pages.bytes());
  EXPECT_THAT(files.past, ElementsAre((2U << 20) + 4096U));
  EXPECT_THAT(files.through, ElementsAre(904U));
  expect_written(FileSystem::real(), pages.bytes());
}

TEST(PlainFile, what_is_short_or_begins_within_a_page_does_not) {
  const AlignedBytes pages(kSize);
  NotingFileSystem files;
  expect_written(files, pages.bytes().subspan(8));
  expect_written(files, pages.bytes().first(100 << 10));
  EXPECT_TRUE(files.past.empty());
}

TEST(PlainFile, where_nothing_can_go_past_the_cache_all_of_it_goes_through) {
  class Refusing final : public NotingFileSystem {
   public:
    bool pass_cache(int, bool passes) override { return !passes; }
  };
  class WithLargerBlocks final : public NotingFileSystem {
    ssize_t write_past(int, std::span<const std::byte>) override {
      errno = EINVAL;
      return -1;
    }
  };
  const AlignedBytes pages(kSize);
  Refusing refusing;
  WithLargerBlocks larger;
  for (NotingFileSystem* const files :
       {static_cast<NotingFileSystem*>(&refusing), static_cast<NotingFileSystem*>(&larger)}) {
    expect_written(*files, pages.bytes());
    EXPECT_TRUE(files->past.empty());
    EXPECT_THAT(files->through, ElementsAre(kSize));
  }
}

TEST(PlainFile, a_short_write_past_the_cache_is_gone_on_with) {
  class Short final : public NotingFileSystem {
    ssize_t write_past(int fd, std::span<const std::byte> bytes) override {
      return real().write(fd, bytes.first(1000));
    }
  };
  const AlignedBytes pages(kSize);
  Short files;
  expect_written(files, pages.bytes());
  EXPECT_THAT(files.past, ElementsAre(1000U));
  EXPECT_THAT(files.through, ElementsAre(kSize - 1000));
}

TEST(PlainFile, a_disk_that_is_full_past_the_cache_is_an_error_with_what_was_written) {
  class Full final : public NotingFileSystem {
    ssize_t write_past(int fd, std::span<const std::byte> bytes) override {
      if (past.empty()) return real().write(fd, bytes.first(1 << 20));
      errno = ENOSPC;
      return -1;
    }
  };
  const AlignedBytes pages(kSize);
  Full files;
  const auto error = error_of([&] { expect_written(files, pages.bytes()); });
  EXPECT_THAT(error.what(), Says("checkpoint.file_cut_short", kSize, 1048576));
  EXPECT_THAT(error.what(), ::testing::HasSubstr("No space left on device"));
}

}  // namespace
}  // namespace paceline
