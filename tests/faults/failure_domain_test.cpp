// A rank leaves a group because another group of that rank has failed. The errors of the ranks that
// wait for it name this reason, so that its leaving is not taken for the first cause.

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::run_process_ranks;
using harness::Says;
using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

class FailureDomainTest : public testing::TestWithParam<TransportKind> {
 protected:
  static std::vector<harness::ProcessResult> run(int ranks,
                                                 std::function<void(ProcessGroup&)> body) {
    return run_process_ranks(ranks,
                             [body = std::move(body)](ProcessGroup& group) {
                               body(group);
                               return std::string("passed");
                             },
                             {.transport = GetParam(), .group_timeout = 20s});
  }
};

// Makes the group fail: its two ranks call different collectives.
void fail_in(ProcessGroup& group) {
  std::array<float, 4> data{};
  if (group.rank() == 0) group.all_reduce(std::span<float>(data));
  if (group.rank() == 1) group.broadcast(std::span<float>(data), 0);
}

void expect_first_cause(const harness::ProcessResult& result, const std::string& failed_group) {
  EXPECT_EQ(result.code, ErrorCode::kPeerLost) << result.report;
  EXPECT_THAT(result.report,
              AllOf(Says("loss.another_group_failed"), HasSubstr("in group " + failed_group)));
}

TEST_P(FailureDomainTest, of_a_child_is_told_to_the_parent) {
  const auto results = run(3, [](ProcessGroup& world) {
    const auto pair = world.new_group({0, 1});
    if (world.rank() < 2) fail_in(*pair);
    world.barrier();
  });
  expect_first_cause(results[2], "world.0");
}

TEST_P(FailureDomainTest, of_a_parent_is_told_to_the_child) {
  const auto results = run(3, [](ProcessGroup& world) {
    const auto pair = world.new_group({0, 1});
    world.barrier();
    if (world.rank() == 1) {
      pair->barrier();
      return;
    }
    if (world.rank() == 2) return world.abort("the loss is NaN");
    world.barrier();
  });
  EXPECT_EQ(results[1].code, ErrorCode::kPeerLost);
  EXPECT_THAT(results[1].report,
              AllOf(Says("loss.another_group_failed"), HasSubstr("the loss is NaN")));
}

TEST_P(FailureDomainTest, of_a_sibling_is_told_to_the_other_and_to_its_children) {
  const auto results = run(4, [](ProcessGroup& world) {
    const auto left = world.new_group({0, 1}), right = world.new_group({1, 2, 3});
    const auto below = world.rank() > 0 ? right->new_group({0, 2}) : nullptr;
    if (world.rank() < 2) return fail_in(*left);
    world.rank() == 2 ? right->barrier() : below->barrier();
  });
  expect_first_cause(results[2], "world.0");
  expect_first_cause(results[3], "world.0");
}

TEST_P(FailureDomainTest, ends_no_other_group) {
  const auto results = run(3, [](ProcessGroup& world) {
    const auto pair = world.new_group({0, 1});
    if (world.rank() < 2) {
      EXPECT_THROW(fail_in(*pair), Error);
    }
    for (int i = 0; i < 10; ++i) world.barrier();
  });
  for (const auto& result : results) EXPECT_EQ(result.report, "passed");
}

INSTANTIATE_TEST_SUITE_P(Transports, FailureDomainTest,
                         testing::Values(TransportKind::kShm, TransportKind::kTcp),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace paceline
