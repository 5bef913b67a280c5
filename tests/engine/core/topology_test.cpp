#include "paceline/engine/core/system/topology.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::ElementsAre;

std::string stored(const std::string& name) { return PACELINE_TOPOLOGIES "/" + name; }

template <class Part>
std::size_t count_parts(const Topology& topology, Part part) {
  std::set<int> seen;
  for (const Core& core : topology.cores) seen.insert(part(core));
  return seen.size();
}

TEST(Topology, reads_packages_nodes_caches_and_siblings) {
  const Topology machine =
      load_topology("package:2 numa:2 l3:2(size=32MB) core:4 pu:2(indexes=2*32:32*1)");
  ASSERT_EQ(machine.num_cores(), 32);
  EXPECT_EQ(machine.num_cpus(), 64);
  EXPECT_EQ(count_parts(machine, [](const Core& core) { return core.package; }), 2U);
  EXPECT_EQ(count_parts(machine, [](const Core& core) { return core.numa_node; }), 4U);
  EXPECT_EQ(count_parts(machine, [](const Core& core) { return core.cache; }), 8U);
  EXPECT_EQ(machine.numa_nodes.size(), 4U);
  ASSERT_EQ(machine.caches.size(), 8U);
  EXPECT_EQ(machine.caches[0].level, 3);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(machine.cores[i].number, i);
    EXPECT_THAT(machine.cores[i].cpus, ElementsAre(i, i + 32));
    EXPECT_EQ(machine.cores[i].package, i / 16);
    EXPECT_EQ(machine.cores[i].numa_node, i / 8);
    EXPECT_EQ(machine.cores[i].cache, i / 4);
    EXPECT_EQ(machine.cores[i].speed, 1);
  }
}

TEST(Topology, clusters_are_the_smallest_groups_that_share_something) {
  const Topology arm = load_topology("package:1 l3:1 l2:4 core:4 pu:1");
  EXPECT_EQ(count_parts(arm, [](const Core& core) { return core.cache; }), 1U);
  EXPECT_EQ(count_parts(arm, [](const Core& core) { return core.cluster; }), 4U);
  const Topology groups = load_topology("package:1 numa:1 group:6 core:4 pu:1");
  EXPECT_EQ(count_parts(groups, [](const Core& core) { return core.cluster; }), 6U);
  const Topology private_l2 = load_topology("package:1 l3:2 l2:4 core:1 pu:2");
  EXPECT_EQ(count_parts(private_l2, [](const Core& core) { return core.cluster; }), 2U);
}

TEST(Topology, without_an_l3_the_l2_is_the_cache) {
  const Topology machine = load_topology("package:1 l2:2 core:2 pu:1");
  EXPECT_EQ(count_parts(machine, [](const Core& core) { return core.cache; }), 2U);
  EXPECT_EQ(machine.caches[0].level, 2);
}

TEST(Topology, hybrid_cores_have_speeds) {
  const Topology machine = load_topology(stored("hybrid_8_fast_8_slow.xml"));
  ASSERT_EQ(machine.num_cores(), 16);
  EXPECT_THAT(machine.cores[0].cpus, ElementsAre(0, 1));
  EXPECT_EQ(machine.cores[0].speed, 1);
  EXPECT_THAT(machine.cores[8].cpus, ElementsAre(16));
  EXPECT_NEAR(machine.cores[8].speed, 0.5 * 3900 / 5000, 1e-9);
}

TEST(Topology, a_recorded_virtual_machine) {
  const Topology machine = load_topology(stored("recorded_epyc_vm_2_cores.xml"));
  ASSERT_EQ(machine.num_cores(), 2);
  EXPECT_EQ(machine.caches, (std::vector<Cache>{{3, 32 << 20}}));
  EXPECT_EQ(machine.cores[1].cache, 0);
  EXPECT_EQ(machine.cores[1].speed, 1);
  EXPECT_EQ(machine.numa_nodes[0].bytes, 13113716736U);
}

TEST(Topology, a_description_that_hwloc_does_not_understand_is_refused) {
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "/broken.xml") << "<topology";
  for (const std::string& text :
       {std::string("nonsense"), std::string(""), std::string("core:-1"),
        std::string("/nonexistent/machine.xml"), folder + "/broken.xml"}) {
    try {
      load_topology(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), testing::HasSubstr("'" + text + "'"));
    }
  }
}

TEST(Topology, restricting_splits_cores_and_forgets_nothing) {
  const Topology machine = load_topology("core:4 pu:2");
  const Topology narrowed = restrict_topology(machine, {1, 2, 3, 6, 99});
  ASSERT_EQ(narrowed.num_cores(), 3);
  EXPECT_THAT(narrowed.cpus(), ElementsAre(1, 2, 3, 6));
  EXPECT_THAT(narrowed.cores[0].cpus, ElementsAre(1));
  EXPECT_EQ(narrowed.other_cores.size(), 3U);
  EXPECT_EQ(narrowed.other_cores[0].number, 0);
  EXPECT_THROW(restrict_topology(machine, {64}), Error);
  EXPECT_THROW(restrict_topology(machine, {}), Error);
}

TEST(Topology, usable_cores_respect_the_quota_and_are_never_none) {
  Topology topology = load_topology("core:4 pu:1");
  EXPECT_EQ(topology.num_usable_cores(), 4);
  topology.quota = CpuQuota{2.9, "the cgroup"};
  EXPECT_EQ(topology.num_usable_cores(), 2);
  topology.quota->cpus = 0.2;
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
  EXPECT_EQ(narrowed.other_cores.empty(), CPU_COUNT(&before) == 1);
}

TEST(Topology, a_file_that_is_none_of_lstopo_is_not_read) {
  const FreshDirectory directory;
  const std::string large = directory.write("large.xml", "<");
  std::filesystem::resize_file(large, std::uintmax_t{65} << 20);
  const std::string device = directory.file("device.xml");
  std::filesystem::create_symlink("/dev/zero", device);
  for (const auto& [path, why] :
       {std::pair(large, Says("topology.too_large", large, 64)),
        std::pair(device, Says("topology.not_a_file", device)),
        std::pair(directory.file("missing.xml"),
                  Says("topology.neither", directory.file("missing.xml")))}) {
    try {
      load_topology(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), why);
    }
  }
}

}  // namespace
}  // namespace paceline
