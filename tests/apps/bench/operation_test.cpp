#include "apps/bench/operation.h"

#include <gtest/gtest.h>

#include "paceline/engine/collectives/op_traits.h"

namespace paceline::bench {
namespace {

// The factors are from doc/PERFORMANCE.md of nccl-tests.
TEST(OperationTest, bus_factors_are_those_of_nccl_tests) {
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllReduce, 2), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kGather, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kScatter, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kBroadcast, 8), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kReduce, 8), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kSend, 8), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllToAllV, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor({Op::kAllReduce, true}, 8), 1.75);
}

TEST(OperationTest, algorithm_bandwidth_is_bytes_over_time) {
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(2'000'000'000, 0.5), 4.0);
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(0, 0.5), 0.0);
}

TEST(OperationTest, bytes_are_those_of_the_largest_buffer) {
  EXPECT_EQ(count_for(Op::kAllReduce, Dtype::kFloat32, 4, 1024), 256u);
  EXPECT_EQ(count_for(Op::kAllGather, Dtype::kFloat32, 4, 1024), 64u);
  EXPECT_EQ(bytes_of(Op::kAllGather, Dtype::kFloat32, 4, 64), 1024u);
  EXPECT_EQ(bytes_of(Op::kAllReduce, Dtype::kFloat16, 4, 64), 128u);
}

TEST(OperationTest, counts_are_rounded_up_to_whole_elements_in_every_block) {
  EXPECT_EQ(count_for(Op::kAllReduce, Dtype::kFloat64, 2, 1), 1u);
  EXPECT_EQ(count_for(Op::kAllReduce, Dtype::kFloat32, 2, 9), 3u);
  EXPECT_EQ(count_for(Op::kAllToAll, Dtype::kFloat32, 4, 8), 1u);
  EXPECT_EQ(bytes_of(Op::kAllToAll, Dtype::kFloat32, 4, 1), 16u);
  EXPECT_EQ(count_for({Op::kAllReduce, true}, Dtype::kFloat32, 4, 8), kCoalescedBuffers);
  EXPECT_EQ(count_for(Op::kAllToAllV, Dtype::kFloat32, 4, 64), 4u);
  EXPECT_EQ(count_for(Op::kSend, Dtype::kFloat32, 4, 64), 16u);
  EXPECT_EQ(count_for(Op::kBarrier, Dtype::kFloat32, 4, 8), 0u);
}

TEST(OperationTest, names_are_read_back) {
  for (const Operation op : measurable_ops()) EXPECT_EQ(op_named(name_of(op)), op);
  EXPECT_FALSE(op_named("send"));
  EXPECT_EQ(name_of(Operation(Op::kSend)), "send_recv");
  EXPECT_EQ(name_of(Operation(Op::kAllReduce, true)), "all_reduce_coalesced");
}

TEST(OperationTest, every_operation_has_its_usual_form) {
  for (const Operation op : measurable_ops()) EXPECT_TRUE(has_form(op, usual_placement(op)));
  EXPECT_TRUE(has_form(Op::kAllReduce, Placement::kOutOfPlace));
  EXPECT_TRUE(has_form(Op::kAllGather, Placement::kInPlace));
  EXPECT_FALSE(has_form(Op::kAllToAll, Placement::kInPlace));
  EXPECT_FALSE(has_form(Op::kBroadcast, Placement::kOutOfPlace));
}

}  // namespace
}  // namespace paceline::bench
