#include "paceline/launcher/placement/machine_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/system/topology.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;
using testing::Not;

Topology small_machine() {
  return load_topology(
      "package:2 numa:1(memory=1073741824) l3:1(size=16777216) core:2 pu:2(indexes=2*4:4*1)");
}

TEST(MachineMap, finds_a_place_for_every_core_once) {
  const Topology topology = load_topology("package:2 numa:2 l3:2 core:3 pu:2");
  int cores = 0;
  const auto packages = map_machine(topology, nullptr);
  ASSERT_EQ(packages.size(), 2U);
  for (const auto& package : packages)
    for (const auto& node : package.nodes)
      for (const auto& cache : node.caches) cores += static_cast<int>(cache.cores.size());
  EXPECT_EQ(cores, topology.num_cores());
}

TEST(MachineMap, text_shows_cpus_and_ranks_in_columns) {
  const Topology topology = small_machine();
  const Placement placement = plan_placement(topology, {.num_local_ranks = 4});
  EXPECT_EQ(draw_machine_text(topology, &placement),
            "4 cores, 8 cpus, 2 packages, 2 NUMA nodes, 2 L3 caches; all given to this process\n"
            "\n"
            "package 0\n"
            "  NUMA node 0, 1.0 GiB\n"
            "    L3 16 MiB\n"
            "      cpu      0   1\n"
            "               4   5\n"
            "      rank     0   1\n"
            "package 1\n"
            "  NUMA node 1, 1.0 GiB\n"
            "    L3 16 MiB\n"
            "      cpu      2   3\n"
            "               6   7\n"
            "      rank     2   3\n"
            "\n"
            "rank 0: cpus 0,4 (1 core), NUMA node 0, 1 thread\n"
            "rank 1: cpus 1,5 (1 core), NUMA node 0, 1 thread\n"
            "rank 2: cpus 2,6 (1 core), NUMA node 1, 1 thread\n"
            "rank 3: cpus 3,7 (1 core), NUMA node 1, 1 thread\n"
            "\n"
            "because: every rank has cores of its own; the hardware threads of a core stay "
            "together\n"
            "because: no rank straddles a NUMA node\n"
            "because: no rank straddles a cache\n"
            "because: a rank's memory is on the NUMA nodes of its cores until they are full\n");
}

TEST(MachineMap, cores_that_were_not_given_and_idle_cores_can_be_told_apart) {
  const Topology topology = restrict_topology(small_machine(), {0, 1, 2, 5});
  const Placement placement = plan_placement(topology, {.num_local_ranks = 2});
  const std::string text = draw_machine_text(topology, &placement);
  EXPECT_THAT(text, Says("topo.given", "3 cores", "0-2,5"));
  EXPECT_THAT(text, HasSubstr("      cpu      0   1\n               x   5\n"));
  EXPECT_THAT(text, HasSubstr("      rank     -   x\n"));
}

TEST(MachineMap, shared_cores_name_all_their_ranks) {
  const Topology topology = load_topology("package:2 numa:1 core:2 pu:1");
  const Placement placement = plan_placement(topology, {.num_local_ranks = 6});
  EXPECT_THAT(draw_machine_text(topology, &placement), HasSubstr("rank   0-2 0-2"));
}

TEST(MachineMap, long_rows_of_cores_are_broken) {
  const std::string text = draw_machine_text(load_topology("core:128 pu:1"), nullptr);
  std::size_t longest = 0, begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    longest = std::max(longest, end - begin);
  }
  EXPECT_LE(longest, 100U);
  EXPECT_THAT(text, HasSubstr("127"));
}

TEST(MachineMap, svg_is_balanced_and_shows_every_core_and_rank) {
  const Topology topology = restrict_topology(load_topology("package:2 l3:4 core:8 pu:2"),
                                              *parse_cpu_list("0-63,70-120"));
  const Placement placement = plan_placement(topology, {.num_local_ranks = 8});
  const std::string svg = draw_machine_svg(topology, &placement);
  auto count = [&](const std::string& text) {
    int occurrences = 0;
    for (auto at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) {
      ++occurrences;
    }
    return occurrences;
  };
  EXPECT_EQ(svg.substr(0, 5), "<svg ");
  EXPECT_EQ(count("<g "), count("</g>"));
  EXPECT_EQ(count("<text "), count("</text>"));
  EXPECT_EQ(count("font-weight=\"bold\""), 64);  // one for each core
  EXPECT_EQ(count(">rank "), 8);
  EXPECT_THAT(svg, Says("topo.svg_not_given"));
}

TEST(MachineMap, svg_without_ranks_claims_none) {
  const std::string svg = draw_machine_svg(load_topology("core:2 pu:1"), nullptr);
  EXPECT_THAT(svg, Not(HasSubstr("rank")));
  EXPECT_THAT(svg, HasSubstr(">0<"));
}

}  // namespace
}  // namespace paceline::launcher
