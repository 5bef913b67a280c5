#include <filesystem>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/topology.h"

#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

class CpuPackageTest : public testing::Test {
 protected:
  void add(int cpu, const std::string& says) {
    const std::string folder = "cpu" + std::to_string(cpu) + "/topology";
    std::filesystem::create_directories(directory_.file(folder));
    directory_.write(folder + "/physical_package_id", says);
  }
  std::optional<int> of(const std::vector<int>& cpus) const {
    return package_of(cpus, directory_.path());
  }

 private:
  FreshDirectory directory_;
};

TEST_F(CpuPackageTest, is_the_one_that_all_processors_are_on) {
  for (const int cpu : {0, 1, 4}) add(cpu, "0\n");
  for (const int cpu : {2, 3, 5}) add(cpu, "36\n");
  EXPECT_EQ(of({1}), 0);
  EXPECT_EQ(of({0, 1, 4}), 0);
  EXPECT_EQ(of({2, 3, 5}), 36);
  EXPECT_EQ(of({0, 1, 2}), std::nullopt);
}

TEST_F(CpuPackageTest, is_unknown_where_the_kernel_does_not_say) {
  add(0, "0\n");
  add(1, "-1\n");
  add(2, "");
  add(3, "none\n");
  EXPECT_EQ(of({0}), 0);
  for (const int cpu : {1, 2, 3, 4}) EXPECT_EQ(of({0, cpu}), std::nullopt) << cpu;
  EXPECT_EQ(of({}), std::nullopt);
}

TEST(CpuPackage, of_one_processor_of_this_machine_is_as_sysfs_says) {
  const std::vector<int> first = {allowed_cpus().at(0)};
  const std::string file =
      "/sys/devices/system/cpu/cpu" + std::to_string(first[0]) + "/topology/physical_package_id";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "this kernel does not say: no " << file;
  int package = -1;
  std::ifstream(file) >> package;
  EXPECT_EQ(package_of(first).value_or(-1), package);
}

}  // namespace
}  // namespace paceline
