#include "paceline/launcher/placement/gpus.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/fresh_directory.h"

namespace paceline::launcher {
namespace {

using testing::ElementsAre;

// A machine's files in a directory of the test.
class GpusTest : public testing::Test {
 protected:
  void add_device(const std::string& bus_id, const std::string& numa_node, const std::string& cpus,
                  const std::string& vendor = "0x10de", const std::string& type = "0x030200") {
    const auto folder = root() / "sys/bus/pci/devices" / bus_id;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "vendor") << vendor << '\n';
    std::ofstream(folder / "class") << type << '\n';
    std::ofstream(folder / "numa_node") << numa_node << '\n';
    std::ofstream(folder / "local_cpulist") << cpus << '\n';
  }
  std::filesystem::path root() const { return directory_.file("root"); }

 private:
  const FreshDirectory directory_;
};

TEST_F(GpusTest, finds_the_gpus_with_their_places_in_the_order_of_their_buses) {
  add_device("0000:3b:00.0", "1", "4-7");
  add_device("0000:18:00.0", "0", "0-3");
  add_device("0000:19:00.0", "0", "0-3", "0x8086");              // of another maker
  add_device("0000:1a:00.0", "0", "0-3", "0x10de", "0x068000");  // a switch of NVIDIA
  EXPECT_THAT(find_gpus(root()), ElementsAre(Gpu{"0000:18:00.0", 0, {0, 1, 2, 3}},
                                             Gpu{"0000:3b:00.0", 1, {4, 5, 6, 7}}));
}

TEST_F(GpusTest, in_a_container_only_those_that_it_was_given_count) {
  add_device("0000:18:00.0", "0", "0-3");
  add_device("0000:3b:00.0", "-1", "");
  std::filesystem::create_directories(root() / "proc/driver/nvidia/gpus/0000:3b:00.0");
  EXPECT_THAT(find_gpus(root()), ElementsAre(Gpu{"0000:3b:00.0", -1, {}}));
}

TEST_F(GpusTest, a_machine_without_gpus_has_none) { EXPECT_TRUE(find_gpus(root()).empty()); }

TEST(VisibleGpus, are_in_the_order_of_the_list_which_ends_at_the_first_unknown_one) {
  const std::vector<Gpu> all = {{"a", 0, {0}}, {"b", 0, {1}}, {"c", 1, {2}}};
  EXPECT_EQ(visible_gpus(all, {}), all);
  EXPECT_THAT(visible_gpus(all, "2,0"), ElementsAre(all[2], all[0]));
  EXPECT_THAT(visible_gpus(all, "1,7,0"), ElementsAre(all[1]));
  EXPECT_TRUE(visible_gpus(all, "").empty());
  EXPECT_TRUE(visible_gpus(all, "-1").empty());
  EXPECT_EQ(visible_gpus(all, "GPU-8932f937,GPU-cf2bb9f0").size(), 2u);
}

Topology eight_cores() {
  Topology topology;
  for (int core = 0; core < 8; ++core) {
    topology.cores.push_back({.cpus = {core, core + 8}, .numa_node = core / 4, .number = core});
  }
  topology.numa_nodes = {{0, 1 << 30}, {1, 1 << 30}};
  return topology;
}

TEST(BindingNearGpus, gives_each_rank_the_cores_near_its_gpu) {
  const std::vector<int> first = {0, 1, 2, 3, 8, 9, 10, 11}, second = {4, 5, 6, 7, 12, 13, 14, 15};
  const auto binding =
      binding_near_gpus(eight_cores(), {{"a", 1, second}, {"b", 0, first}, {"c", 1, second}});
  ASSERT_TRUE(binding);
  EXPECT_EQ(binding->to, BindTo::kMap);
  EXPECT_THAT(binding->map,
              ElementsAre(ElementsAre(4, 5, 12, 13), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11),
                          ElementsAre(6, 7, 14, 15)));
}

std::vector<int> both_threads(std::vector<int> cores) {
  for (std::size_t i = 0, count = cores.size(); i < count; ++i) cores.push_back(cores[i] + 8);
  return cores;
}

TEST(BindingNearGpus, gives_no_core_to_two_ranks_whose_gpus_overlap) {
  const std::vector<int> all = both_threads({0, 1, 2, 3, 4, 5, 6, 7}),
                         lower = both_threads({0, 1, 2, 3}), upper = both_threads({4, 5, 6, 7});
  const auto nested = binding_near_gpus(eight_cores(), {{"a", -1, all}, {"b", 0, lower}});
  ASSERT_TRUE(nested);
  EXPECT_THAT(nested->map, ElementsAre(upper, lower));
  const auto across = binding_near_gpus(
      eight_cores(), {{"a", 0, lower}, {"b", 1, upper}, {"c", -1, all}, {"d", -1, all}});
  ASSERT_TRUE(across);
  std::vector<int> given;
  for (const std::vector<int>& cpus : across->map) {
    EXPECT_EQ(cpus.size(), 4u);
    given.insert(given.end(), cpus.begin(), cpus.end());
  }
  EXPECT_THAT(given, testing::UnorderedElementsAreArray(all));
}

TEST(BindingNearGpus, is_left_to_the_planner_where_the_places_are_unknown_or_too_small) {
  EXPECT_FALSE(binding_near_gpus(eight_cores(), {{"a", 0, {0, 8}}, {"b", -1, {}}}));
  EXPECT_FALSE(binding_near_gpus(eight_cores(), {{"a", 0, {0, 8}}, {"b", 0, {0, 8}}}));
  EXPECT_FALSE(binding_near_gpus(eight_cores(),
                                 {{"a", 0, {0, 8}}, {"b", 0, {1, 9}}, {"c", 0, {0, 1, 8, 9}}}));
}

}  // namespace
}  // namespace paceline::launcher
