// The hierarchy's schedules for hosts of every kind, without a network: the results are bitwise as
// promised; and how often a byte crosses the network.

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/op_traits.h"

#include "tests/engine/collectives/host_layouts.h"
#include "tests/engine/collectives/schedule_data.h"

namespace paceline {
namespace {

class HierarchyTest : public testing::TestWithParam<HostLayout> {};

TEST_P(HierarchyTest, gives_every_rank_the_promised_bits) {
  const Hosts hosts = Hosts::from(GetParam().host_of);
  for (const Op op :
       {Op::kAllReduce, Op::kBroadcast, Op::kReduce, Op::kAllGather, Op::kReduceScatter}) {
    for (const std::size_t count : {0, 1, 63, 200, 1500}) {
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16}) {
        for (const int root : {0, hosts.world_size() / 2, hosts.world_size() - 1}) {
          for (const bool in_place : {false, true}) {
            if (in_place && op == Op::kReduceScatter) continue;
            ScheduleCase test{Algorithm::kHierarchy, {}, hosts.world_size(), in_place, hosts, 100};
            test.call.op = op;
            test.call.count = count;
            test.call.dtype = dtype;
            test.call.root = root;
            ScheduleRun run(test);
            ASSERT_NO_THROW(run.run()) << name_of(op) << " " << count;
            for (int rank = 0; rank < test.world; ++rank) {
              ASSERT_EQ(run.output(rank), run.expected(rank))
                  << name_of(op) << " of " << count << " " << name_of(dtype) << ", root " << root
                  << ", rank " << rank;
              ASSERT_TRUE(run.begins_with_next(rank));
            }
            ASSERT_TRUE(run.everybody_heard_of_all());
          }
          if (!has_root(op)) break;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, HierarchyTest, testing::ValuesIn(host_layouts()),
                         [](const auto& info) { return std::string(info.param.name); });

std::uint64_t network_bytes(Algorithm algorithm, Op op, const Hosts& hosts, std::size_t count,
                            Dtype dtype) {
  ScheduleCase test{algorithm, {}, hosts.world_size(), false, hosts, 1000};
  test.call.op = op;
  test.call.count = count;
  test.call.dtype = dtype;
  return ScheduleRun(test).run().network_bytes;
}

// Headers are less than 1 % of the bytes that are sent here.
TEST(HierarchyBytes, cross_the_network_once_for_a_host) {
  const std::size_t count = 1 << 16;
  const double bytes = count * 4.0;
  const auto near = [](double expected, std::uint64_t actual) {
    EXPECT_GE(static_cast<double>(actual), expected);
    EXPECT_LE(static_cast<double>(actual), 1.01 * expected);
  };
  for (const int ranks : {2, 4, 8}) {
    const Hosts hosts = Hosts::blocks(2, ranks);
    const auto moved = [&](Op op) {
      return network_bytes(Algorithm::kHierarchy, op, hosts, count, Dtype::kFloat32);
    };
    near(2 * bytes, moved(Op::kAllReduce));  // half a buffer in each direction, twice
    near(bytes, moved(Op::kBroadcast));
    near(bytes, moved(Op::kReduce));
    near(2 * ranks * bytes, moved(Op::kAllGather));
    near(2 * ranks * bytes, moved(Op::kReduceScatter));
    const auto direct =
        network_bytes(Algorithm::kDirect, Op::kAllReduce, hosts, count, Dtype::kFloat32);
    near(ranks * 2 * bytes, direct);
  }
  // Three ranks form two subtrees: their two sums cross the network, and the result crosses it
  // once.
  near(3 * bytes, network_bytes(Algorithm::kHierarchy, Op::kAllReduce, Hosts::blocks(2, 3), count,
                                Dtype::kFloat32));
  // 16-bit types: sums cross as float32, results as 16-bit values.
  near(1.5 * bytes, network_bytes(Algorithm::kHierarchy, Op::kAllReduce, Hosts::blocks(2, 2), count,
                                  Dtype::kBfloat16));
}

TEST(HierarchySubtrees, are_the_largest_inside_a_host) {
  using Trees = std::vector<Subtree>;
  EXPECT_EQ(subtrees_by_host(Hosts::blocks(2, 4))[1], (Trees{{4, 4}}));
  EXPECT_EQ(subtrees_by_host(Hosts::blocks(2, 3))[0], (Trees{{0, 2}, {2, 1}}));
  EXPECT_EQ(subtrees_by_host(Hosts::blocks(2, 3))[1], (Trees{{3, 1}, {4, 2}}));
  EXPECT_EQ(subtrees_by_host(Hosts::from({7, 9, 7, 9}))[1], (Trees{{1, 1}, {3, 1}}));
  EXPECT_EQ(subtrees_by_host(Hosts::blocks(1, 5))[0], (Trees{{0, 5}}));
}

TEST(HierarchySubtrees, are_equal_where_hosts_have_powers_of_two_of_neighbours) {
  const auto ranks = [](const Hosts& hosts) {
    return ranks_of_equal_subtrees(subtrees_by_host(hosts));
  };
  EXPECT_EQ(ranks(Hosts::blocks(2, 4)), 4);
  EXPECT_EQ(ranks(Hosts::blocks(3, 2)), 2);
  EXPECT_EQ(ranks(Hosts::blocks(5, 1)), 1);
  EXPECT_EQ(ranks(Hosts::blocks(1, 5)), 5);
  EXPECT_EQ(ranks(Hosts::blocks(2, 3)), 0);
  EXPECT_EQ(ranks(Hosts::from({0, 1, 0, 1})), 0);
  EXPECT_EQ(ranks(Hosts::from({0, 0, 0, 0, 1, 1})), 0);
  EXPECT_EQ(ranks(Hosts::from({0, 0, 1, 1, 0, 0})), 0);
}

}  // namespace
}  // namespace paceline
