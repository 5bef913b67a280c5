#include "paceline/core/topology.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sched.h>

namespace paceline {
namespace {

class CgroupTree : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "paceline-cgroup-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    const auto file = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  std::string root_;
};

TEST_F(CgroupTree, the_smallest_limit_on_the_way_up_counts) {
  put("a/cpu.max", "250000 100000");
  put("a/b/cpu.max", "max 100000");
  put("cpu.max", "800000 100000");
  EXPECT_EQ(cgroup_cpu_quota(root_, "0::/a/b\n"), 2.5);
  EXPECT_EQ(cgroup_cpu_quota(root_, "0::/\n"), 8.0);
}

TEST_F(CgroupTree, the_first_version_is_read_too) {
  put("cpu/job/cpu.cfs_quota_us", "150000");
  put("cpu/job/cpu.cfs_period_us", "100000");
  put("cpu/cpu.cfs_quota_us", "-1");
  put("cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cgroup_cpu_quota(root_, "4:memory:/job\n2:cpu,cpuacct:/job\n"), 1.5);
  EXPECT_EQ(cgroup_cpu_quota(root_, "2:cpu,cpuacct:/\n"), std::nullopt);
}

TEST_F(CgroupTree, nothing_readable_means_no_limit) {
  EXPECT_EQ(cgroup_cpu_quota(root_, ""), std::nullopt);
  EXPECT_EQ(cgroup_cpu_quota(root_, "garbage\n0::no-slash\n2:cpu\n"), std::nullopt);
}

TEST(Topology, cpu_lists_are_written_as_the_kernel_does) {
  EXPECT_EQ(format_cpu_list({}), "");
  EXPECT_EQ(format_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(Topology, usable_cores_respect_the_quota_and_are_never_none) {
  Topology topology{{{{0}, 0}, {{1}, 0}, {{2}, 0}, {{3}, 0}}, {}};
  EXPECT_EQ(topology.num_usable_cores(), 4);
  topology.cpu_quota = 2.9;
  EXPECT_EQ(topology.num_usable_cores(), 2);
  topology.cpu_quota = 0.2;
  EXPECT_EQ(topology.num_usable_cores(), 1);
}

TEST(Topology, shows_exactly_the_cpus_of_the_affinity_mask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(discover_topology().num_cpus(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const Topology narrowed = discover_topology();
  sched_setaffinity(0, sizeof before, &before);
  ASSERT_EQ(narrowed.num_cores(), 1);
  EXPECT_EQ(narrowed.cores[0].cpus, std::vector<int>{first});
}

}  // namespace
}  // namespace paceline
