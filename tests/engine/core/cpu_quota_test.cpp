#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "paceline/engine/core/system/resource_limits.h"

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
  EXPECT_EQ(cgroup_cpu_quota(root_, "0::/a/b\n"), (CpuQuota{2.5, "the cgroup"}));
  EXPECT_EQ(cgroup_cpu_quota(root_, "0::/\n"), (CpuQuota{8.0, "the cgroup"}));
}

TEST_F(CgroupTree, the_first_version_is_read_too) {
  put("cpu/job/cpu.cfs_quota_us", "150000");
  put("cpu/job/cpu.cfs_period_us", "100000");
  put("cpu/cpu.cfs_quota_us", "-1");
  put("cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cgroup_cpu_quota(root_, "4:memory:/job\n2:cpu,cpuacct:/job\n"),
            (CpuQuota{1.5, "the cgroup"}));
  EXPECT_EQ(cgroup_cpu_quota(root_, "2:cpu,cpuacct:/\n"), std::nullopt);
}

TEST_F(CgroupTree, nothing_readable_means_no_limit) {
  EXPECT_EQ(cgroup_cpu_quota(root_, ""), std::nullopt);
  EXPECT_EQ(cgroup_cpu_quota(root_, "garbage\n0::no-slash\n2:cpu\n"), std::nullopt);
}

std::optional<CpuQuota> with_variables(const std::map<std::string, std::string>& variables) {
  return slurm_cpu_quota([&](const char* name) -> const char* {
    const auto entry = variables.find(name);
    return entry == variables.end() ? nullptr : entry->second.c_str();
  });
}

TEST(SlurmQuota, a_task_of_a_step_has_its_cpus_per_task) {
  EXPECT_EQ(
      with_variables(
          {{"SLURM_STEP_ID", "0"}, {"SLURM_CPUS_PER_TASK", "4"}, {"SLURM_CPUS_ON_NODE", "16"}}),
      (CpuQuota{4, "SLURM_CPUS_PER_TASK"}));
}

TEST(SlurmQuota, the_only_task_of_a_step_has_the_nodes_share) {
  EXPECT_EQ(with_variables({{"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_TASKS_PER_NODE", "1"},
                            {"SLURM_CPUS_PER_TASK", "4"},
                            {"SLURM_CPUS_ON_NODE", "16"}}),
            (CpuQuota{16, "SLURM_CPUS_ON_NODE"}));
}

TEST(SlurmQuota, outside_a_step_the_nodes_share_counts) {
  EXPECT_EQ(with_variables({{"SLURM_CPUS_PER_TASK", "4"}, {"SLURM_CPUS_ON_NODE", "16"}}),
            (CpuQuota{16, "SLURM_CPUS_ON_NODE"}));
}

TEST(SlurmQuota, nothing_usable_means_no_limit) {
  EXPECT_EQ(with_variables({}), std::nullopt);
  EXPECT_EQ(with_variables({{"SLURM_CPUS_ON_NODE", "many"}}), std::nullopt);
}

}  // namespace
}  // namespace paceline
