// Calls that do not match, between ranks that are declared to be on several hosts: every mismatch
// in every layout. The odd rank is the first and the last rank in turn, so that each layout meets
// both. Two ranks alone cannot form a hierarchy.

#include <iostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/selection/cost_model.h"

#include "tests/engine/collectives/host_layouts.h"
#include "tests/engine/collectives/mismatches.h"

namespace paceline {
namespace {

using testing::HasSubstr;

void expect_all_noticed(const MismatchRun& run) {
  MismatchRun with_odd = run;
  for (const Mismatch& mismatch : mismatches()) {
    std::cout << mismatch.name << std::endl;  // names the mismatch in case a watchdog ends it
    with_odd.odd = run.world - 1 - with_odd.odd;
    expect_noticed(mismatch, with_odd);
  }
}

MismatchRun on_hosts(const std::vector<int>& host_of, std::optional<Algorithm> algorithm) {
  MismatchRun run{.world = static_cast<int>(host_of.size()),
                  .over = algorithm ? "hosts by hierarchy" : "hosts as planned"};
  run.options.adjust = [=](int rank, GroupOptions& group) {
    group.link.host = "h" + std::to_string(host_of[static_cast<std::size_t>(rank)]);
    group.planning.algorithm = algorithm;
    group.planning.costs =
        std::make_shared<const CostModel>();  // fixed costs instead of this machine's calibration
  };
  return run;
}

class HostsMismatchTest : public testing::TestWithParam<HostLayout> {
 protected:
  static void TearDownTestSuite() { print_noticed(); }
};

TEST_P(HostsMismatchTest, by_the_hierarchy_is_a_typed_error_on_every_rank_at_once) {
  MismatchRun run = on_hosts(GetParam().host_of, Algorithm::kHierarchy);
  run.inspect = [](const ProcessGroup& group) { expect_algorithm(group, Algorithm::kHierarchy); };
  expect_all_noticed(run);
}

INSTANTIATE_TEST_SUITE_P(Layouts, HostsMismatchTest,
                         testing::Values(HostLayout{"one_and_two", {0, 1, 1}},
                                         HostLayout{"two_and_one_in_turn", {0, 1, 0}},
                                         HostLayout{"two_of_two_in_turn", {0, 1, 0, 1}},
                                         HostLayout{"three_and_one", {0, 0, 0, 1}},
                                         HostLayout{"two_and_two_of_one", {0, 0, 1, 2}}),
                         [](const auto& info) { return std::string(info.param.name); });

// Ranks that make different calls also choose different algorithms.
TEST(HostsMismatchAsPlanned, is_a_typed_error_on_every_rank_at_once) {
  MismatchRun run = on_hosts({0, 0, 1, 1}, {});
  run.inspect = [](const ProcessGroup& group) {
    for (const Op op : {Op::kAllReduce, Op::kAllGather, Op::kAllGatherV, Op::kReduceScatterV}) {
      EXPECT_THAT(group.explain(op, Dtype::kFloat32, 1 << 20), HasSubstr("* hierarchy "));
    }
    EXPECT_THAT(group.explain(Op::kAllToAll, Dtype::kFloat32, 1 << 20), HasSubstr("* direct "));
  };
  expect_all_noticed(run);
  print_noticed();
}

}  // namespace
}  // namespace paceline
