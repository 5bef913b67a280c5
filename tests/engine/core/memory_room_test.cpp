#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "paceline/engine/core/system/resource_limits.h"

#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

class MemoryRoomTest : public testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    const auto file = std::filesystem::path(root_.file(path));
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void put(const std::string& path, std::uint64_t number) { put(path, std::to_string(number)); }
  void put_machine(std::uint64_t available_mib, std::uint64_t swap_mib) {
    put("proc/meminfo",
        "MemTotal: 99999999 kB\nMemAvailable: " + std::to_string(available_mib * 1024) +
            " kB\nSwapFree: " + std::to_string(swap_mib * 1024) + " kB");
  }
  std::optional<MemoryRoom> room() { return memory_room(root_.file("cgroup"), root_.file("proc")); }

  const FreshDirectory root_;
};

TEST_F(MemoryRoomTest, is_what_the_machine_has_where_no_cgroup_limits_it) {
  EXPECT_EQ(room(), std::nullopt);
  put_machine(1000, 24);
  EXPECT_EQ(room(), (MemoryRoom{1024 * kMiB, "of the machine's memory"}));
  put("proc/self/cgroup", "0::/a");
  put("cgroup/a/memory.max", "max");
  put("cgroup/a/memory.current", 5 * kMiB);
  EXPECT_EQ(room()->bytes, 1024 * kMiB);
}

TEST_F(MemoryRoomTest, is_below_the_tightest_limit_on_the_way_up_without_kept_files) {
  put_machine(1000, 0);
  put("proc/self/cgroup", "0::/a/b");
  put("cgroup/a/b/memory.max", 600 * kMiB);
  put("cgroup/a/b/memory.current", 100 * kMiB);
  put("cgroup/a/memory.max", 700 * kMiB);
  put("cgroup/a/memory.current", 400 * kMiB);
  put("cgroup/a/memory.stat", "anon 1\ninactive_file " + std::to_string(30 * kMiB) +
                                  "\nactive_file " + std::to_string(10 * kMiB));
  EXPECT_EQ(room(), (MemoryRoom{340 * kMiB, "below the limit of " + root_.file("cgroup/a")}));
  put("cgroup/a/memory.current", 800 * kMiB);  // more than the limit, which was lowered
  EXPECT_EQ(room()->bytes, 0u);
}

TEST_F(MemoryRoomTest, has_the_swap_that_the_cgroup_may_use) {
  put_machine(1000, 500);
  put("proc/self/cgroup", "0::/");
  put("cgroup/memory.max", 200 * kMiB);
  put("cgroup/memory.current", 50 * kMiB);
  EXPECT_EQ(room()->bytes, 650 * kMiB);
  put("cgroup/memory.swap.max", 30 * kMiB);
  put("cgroup/memory.swap.current", 10 * kMiB);
  EXPECT_EQ(room()->bytes, 170 * kMiB);
}

TEST_F(MemoryRoomTest, of_the_first_version_of_cgroups_is_read_too) {
  put_machine(1000, 0);
  put("proc/self/cgroup", "4:memory:/job\n0::/");
  put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  put("cgroup/memory/memory.usage_in_bytes", 900 * kMiB);
  put("cgroup/memory/job/memory.limit_in_bytes", 100 * kMiB);
  put("cgroup/memory/job/memory.usage_in_bytes", 60 * kMiB);
  put("cgroup/memory/job/memory.stat", "total_inactive_file " + std::to_string(8 * kMiB));
  EXPECT_EQ(room()->bytes, 48 * kMiB);
}

}  // namespace
}  // namespace paceline
