// Buffers of one call that share memory: the allowed and the refused cases.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/transport/wire.h"

#include "tests/engine/collectives/conformance.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::Says;

class OwnBlocksTest : public testing::TestWithParam<Algorithm> {};

// The conformance suite runs the same checks over every transport, with the planner's choice of
// algorithms.
TEST_P(OwnBlocksTest, may_be_input_or_output_whatever_the_algorithm) {
  for (const auto& check : conformance::checks()) {
    if (std::string(check.name) != "own_blocks_may_be_input_or_output") continue;
    for (const int world : {2, 3, 4}) {
      harness::run_ranks_ok(
          world, check.run,
          {.transport = TransportKind::kTcp, .adjust = [](int, GroupOptions& options) {
             options.planning.algorithm = GetParam();
             options.planning.allows_any_order = true;
           }});
    }
    return;
  }
  FAIL() << "the conformance suite has no such check";
}

INSTANTIATE_TEST_SUITE_P(Algorithms, OwnBlocksTest, testing::ValuesIn(kAllAlgorithms),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// If buffers overlapped in other ways, peers would read memory while it is being written.
TEST(Overlap, other_than_in_place_is_refused_before_anything_is_sent) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> data(40, 1.0f);
    const std::span<float> all(data);
    const auto self = static_cast<std::size_t>(group.rank());
    const auto other_block = all.subspan((1 - self) * 10, 10);
    const auto refused = [&](const char* what, const auto& call) {
      try {
        call();
        ADD_FAILURE() << what;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalid) << what;
        EXPECT_THAT(error.what(), Says("call.buffers_overlap", what));
      }
    };
    refused("reduce_scatter", [&] { group.reduce_scatter(other_block, all.first(20)); });
    refused("all_gather", [&] { group.all_gather(all.first(20), other_block); });
    refused("all_reduce",
            [&] { group.all_reduce(all.subspan(1, 20), all.first(20), ReduceOp::kSum); });
    refused("all_to_all", [&] { group.all_to_all(all.first(20), all.first(20)); });
    const std::vector<std::size_t> counts = {4, 6};
    refused("all_gather_v",
            [&] { group.all_gather_v(all.first(10), all.subspan(1, counts[self]), counts); });
    group.all_reduce(all);  // the group still works
    EXPECT_EQ(data, std::vector<float>(40, 2.0f));
  });
}

}  // namespace
}  // namespace paceline
