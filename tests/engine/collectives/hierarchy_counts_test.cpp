// all_gather_v and reduce_scatter_v with the hierarchy: the results are bitwise as promised for
// hosts and counts of every kind; how often a byte crosses the network; and real groups over
// made-up hosts.

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string_view>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/planner.h"

#include "tests/engine/collectives/host_layouts.h"
#include "tests/engine/collectives/sample_values.h"
#include "tests/engine/collectives/schedule_data.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::RanksOptions;
using harness::run_ranks_ok;
using Counts = std::vector<std::size_t>;

constexpr Op kOps[] = {Op::kAllGatherV, Op::kReduceScatterV};

std::size_t total_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// All zero; a single element; all on the first, the last or a middle rank; all equal; mixed with
// zeros.
std::vector<Counts> counts_of_every_kind(int world, std::size_t scale) {
  const auto ranks = static_cast<std::size_t>(world);
  std::vector<Counts> all(7, Counts(ranks));
  all[1][ranks / 2] = 1;
  all[2].front() = 4 * scale + 1;
  all[3].back() = 4 * scale + 1;
  all[4][ranks / 2] = 4 * scale + 1;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    all[5][rank] = scale;
    all[6][rank] = (rank * 7 + 3) % 5 * scale + rank % 2;
  }
  return all;
}

ScheduleCase case_for(Algorithm algorithm, Op op, const Hosts& hosts, const Counts& counts) {
  ScheduleCase test{algorithm, {}, hosts.world_size(), false, hosts};
  test.call.op = op;
  test.call.dtype = Dtype::kFloat32;
  test.call.counts = counts;
  test.call.count = total_of(counts);
  return test;
}

std::string text_of(Op op, const Counts& counts) {
  std::string text(name_of(op));
  for (const std::size_t count : counts) text += " " + std::to_string(count);
  return text;
}

class HierarchyCounts : public testing::TestWithParam<HostLayout> {};

TEST_P(HierarchyCounts, give_every_rank_the_promised_bits) {
  const Hosts hosts = Hosts::from(GetParam().host_of);
  for (const Op op : kOps) {
    for (const Counts& counts : counts_of_every_kind(hosts.world_size(), 130)) {
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16}) {
        for (const bool in_place : {false, true}) {
          if (in_place && op == Op::kReduceScatterV) continue;
          SCOPED_TRACE(text_of(op, counts));
          ScheduleCase test = case_for(Algorithm::kHierarchy, op, hosts, counts);
          test.call.dtype = dtype;
          test.in_place = in_place;
          ScheduleRun run(test);
          ASSERT_NO_THROW(run.run());
          for (int rank = 0; rank < test.world; ++rank) {
            ASSERT_EQ(run.output(rank), run.expected(rank)) << "rank " << rank;
            ASSERT_TRUE(run.begins_with_next(rank));
          }
          ASSERT_TRUE(run.everybody_heard_of_all());
        }
      }
    }
  }
}

// The pieces use as much of the scratch memory as possible, but never more than a rank has.
TEST_P(HierarchyCounts, are_cut_so_that_the_scratch_of_every_rank_suffices) {
  const Hosts hosts = Hosts::from(GetParam().host_of);
  for (const Op op : kOps) {
    for (const Counts& counts : counts_of_every_kind(hosts.world_size(), 130)) {
      SCOPED_TRACE(text_of(op, counts));
      const ScheduleCase test = case_for(Algorithm::kHierarchy, op, hosts, counts);
      const BlockTable blocks = BlockTable::of(test.call, test.world);
      const auto scratch_of = [&](std::size_t most) {
        const BlockTable piece = blocks.piece(0, most);
        ScheduleSpec spec{op, 0, test.world};
        spec.hosts = &hosts;
        spec.blocks = &piece;
        std::size_t scratch = 0;
        for (spec.rank = 0; spec.rank < test.world; ++spec.rank) {
          scratch = std::max(scratch, build(Algorithm::kHierarchy, spec).scratch_count);
        }
        return scratch;
      };
      const std::size_t largest = *std::max_element(counts.begin(), counts.end());
      for (const std::size_t room : {200u, 400u, 1'000'000u}) {
        const std::size_t most = hierarchy_block_count(op, counts, hosts, room);
        EXPECT_GE(most, 1u);
        EXPECT_LE(scratch_of(most), room);
        if (op == Op::kAllGatherV && most < largest) {
          EXPECT_GT(scratch_of(most + 1), room);
        }
        if (room == 1'000'000u) {
          EXPECT_GE(most, largest);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, HierarchyCounts, testing::ValuesIn(host_layouts()),
                         [](const auto& info) { return std::string(info.param.name); });

// Headers are less than 2 % of the bytes that are sent here.
TEST(HierarchyCountsBytes, cross_the_network_once_for_a_host) {
  const std::size_t scale = 1 << 13;
  for (const int ranks : {2, 4}) {
    const Hosts hosts = Hosts::blocks(3, ranks);
    for (const Op op : kOps) {
      for (const Counts& counts : counts_of_every_kind(hosts.world_size(), scale)) {
        if (total_of(counts) < scale) continue;
        SCOPED_TRACE(text_of(op, counts));
        const auto moved = [&](Algorithm algorithm) {
          return static_cast<double>(
              ScheduleRun(case_for(algorithm, op, hosts, counts)).run().network_bytes);
        };
        // A gathered block is sent to two other hosts; a scattered block receives sums from two
        // other hosts.
        const double once = 2.0 * static_cast<double>(total_of(counts)) * sizeof(float);
        const double by_hierarchy = moved(Algorithm::kHierarchy);
        EXPECT_GE(by_hierarchy, once);
        EXPECT_LE(by_hierarchy, 1.02 * once);
        EXPECT_GE(moved(Algorithm::kDirect), ranks * once);
      }
    }
  }
}

TEST(HierarchyCountsPlan, is_taken_where_hosts_have_several_ranks) {
  for (const Op op : kOps) {
    const PlanRequest large{op, Dtype::kFloat32, 4 << 20};
    const Planner shared(Hosts::blocks(2, 8), {}, /*shares_memory=*/true);
    EXPECT_EQ(shared.choose(large).algorithm, Algorithm::kHierarchy) << shared.explain(large);
    const Planner apart(Hosts::blocks(2, 8), {});
    EXPECT_NE(apart.choose(large).algorithm, Algorithm::kHierarchy);
  }
}

// ---- groups

template <class T>
std::size_t hash_of(const std::vector<T>& data) {
  return std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T)});
}

// Hashes of a rank's results: gathered, gathered in place, a mean, and a 16-bit sum.
std::vector<std::size_t> results_of(ProcessGroup& group, const Counts& counts) {
  const auto self = static_cast<std::size_t>(group.rank());
  const std::size_t before =
      std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0});
  std::vector<std::size_t> hashes;
  const auto mine = random_values(group.rank(), counts[self]);
  std::vector<float> all(total_of(counts));
  group.all_gather_v(std::span(all), std::span(mine), counts);
  hashes.push_back(hash_of(all));
  std::fill(all.begin(), all.end(), -1.0f);
  const auto own = std::span(all).subspan(before, mine.size());
  std::copy(mine.begin(), mine.end(), own.begin());
  group.all_gather_v(std::span(all), own, counts);
  hashes.push_back(hash_of(all));
  all = random_values(group.rank() + 100, all.size());
  std::vector<float> part(mine.size());
  group.reduce_scatter_v(std::span(part), std::span(all), counts, ReduceOp::kMean);
  hashes.push_back(hash_of(part));
  std::vector<std::uint16_t> brains(all.size()), brain_part(part.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &all[i], sizeof bits);
    brains[i] = static_cast<std::uint16_t>(bits >> 16);
  }
  group.reduce_scatter_v(Buffer(brain_part.data(), brain_part.size(), Dtype::kBfloat16),
                         ConstBuffer(brains.data(), brains.size(), Dtype::kBfloat16), counts);
  hashes.push_back(hash_of(brain_part));
  return hashes;
}

class HierarchyCountsGroups : public testing::TestWithParam<HostLayout> {};

TEST_P(HierarchyCountsGroups, give_the_bits_of_one_host) {
  const auto& host_of = GetParam().host_of;
  const int world = static_cast<int>(host_of.size());
  RanksOptions on_hosts;
  on_hosts.adjust = [&](int rank, GroupOptions& group) {
    group.link.host = "h" + std::to_string(host_of[static_cast<std::size_t>(rank)]);
    group.planning.algorithm = Algorithm::kHierarchy;
  };
  // The largest scale is cut into several pieces.
  for (const std::size_t scale : {1, 5000, 300'001}) {
    const auto all_counts = counts_of_every_kind(world, scale);
    std::vector<std::vector<std::vector<std::size_t>>> wanted(static_cast<std::size_t>(world));
    run_ranks_ok(world, [&](ProcessGroup& group) {
      for (const Counts& counts : all_counts) {
        wanted[static_cast<std::size_t>(group.rank())].push_back(results_of(group, counts));
      }
    });
    run_ranks_ok(
        world,
        [&](ProcessGroup& group) {
          for (const Op op : kOps) {
            ASSERT_NE(group.explain(op, Dtype::kFloat32, scale).find("* hierarchy "),
                      std::string::npos);
          }
          for (std::size_t i = 0; i < all_counts.size(); ++i) {
            EXPECT_EQ(results_of(group, all_counts[i]),
                      wanted[static_cast<std::size_t>(group.rank())][i])
                << "rank " << group.rank() << ", counts of kind " << i << ", scale " << scale;
          }
        },
        on_hosts);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, HierarchyCountsGroups,
                         testing::Values(HostLayout{"two_of_two", {0, 0, 1, 1}},
                                         HostLayout{"two_of_three", {0, 0, 0, 1, 1, 1}},
                                         HostLayout{"in_turn", {0, 1, 0, 1}},
                                         HostLayout{"unequal", {0, 0, 0, 1, 2}},
                                         HostLayout{"three_of_two", {0, 0, 1, 1, 2, 2}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace paceline
