#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/transport/shared_memory.h"

namespace paceline {
namespace {

constexpr std::size_t kMegabyte = 1 << 20;

Fd file_of(std::size_t bytes) {
  Fd file(memfd_create("mapping_test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  return file;
}

std::size_t present_pages(const Mapping& mapping) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present((mapping.bytes() + page - 1) / page);
  EXPECT_EQ(mincore(mapping.data(), mapping.bytes(), present.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(present.begin(), present.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

// The kernel's two-letter flags of the memory area that begins at the mapping.
std::string flags_of(const Mapping& mapping) {
  std::ifstream file("/proc/self/smaps");
  const std::string begin = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(mapping.data()));
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    found = found || line.starts_with(begin);
    if (found && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

TEST(Mapping, brings_its_pages_at_once_or_on_touch) {
  for (const std::size_t bytes : {std::size_t(100), kMegabyte, 8 * kMegabyte}) {
    const Fd file = file_of(bytes);
    const Mapping lazy = Mapping::of_file(file, bytes, Pages::kOnTouch);
    ASSERT_TRUE(lazy);
    EXPECT_EQ(present_pages(lazy), 0u);
    const Mapping eager = Mapping::of_file(file, bytes, Pages::kPresent);
    ASSERT_TRUE(eager);
    EXPECT_EQ(present_pages(eager), (bytes + 4095) / 4096);
    eager.data()[bytes - 1] = std::byte{7};
    EXPECT_EQ(lazy.data()[bytes - 1], std::byte{7});
  }
}

TEST(Mapping, asks_for_huge_pages_when_it_is_large) {
  if (std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").fail()) {
    GTEST_SKIP() << "this kernel has no transparent huge pages";
  }
  const Mapping large = Mapping::anonymous(16 * kMegabyte, Pages::kPresent);
  const Mapping small = Mapping::anonymous(kMegabyte, Pages::kPresent);
  EXPECT_NE(flags_of(large).find(" hg"), std::string::npos) << flags_of(large);
  EXPECT_EQ(flags_of(small).find(" hg"), std::string::npos) << flags_of(small);
}

TEST(Mapping, pages_behind_those_that_come_at_once_are_brought_before_they_are_touched) {
  const std::size_t bytes = 4 * kMegabyte;
  Mapping lazy = Mapping::anonymous(bytes, Pages::kOnTouch);
  EXPECT_EQ(present_pages(lazy), 0u);
  ASSERT_TRUE(populate_pages(lazy.data() + kMegabyte, kMegabyte));
  EXPECT_EQ(present_pages(lazy), kMegabyte / 4096);
  // Anonymous pages can only be reserved while they are mapped, so all of them are present.
  EXPECT_EQ(present_pages(Mapping::anonymous(bytes, {Pages::kPresent, kMegabyte})), bytes / 4096);
  const Fd file = file_of(bytes);
  EXPECT_EQ(present_pages(Mapping::of_file(file, bytes, {Pages::kPresent, kMegabyte})),
            kMegabyte / 4096);
}

TEST(Mapping, a_failed_mapping_is_an_error_and_not_a_signal) {
  const Mapping too_large =
      Mapping::of_file(file_of(kMegabyte), std::size_t(1) << 62, Pages::kPresent);
  EXPECT_FALSE(too_large);
  EXPECT_EQ(errno, ENOMEM);
  // Pages beyond the end of a file: touching them would cause SIGBUS.
  const Mapping beyond = Mapping::of_file(file_of(4096), kMegabyte, Pages::kPresent);
  EXPECT_FALSE(beyond);
  EXPECT_NE(errno, 0);
}

}  // namespace
}  // namespace paceline
