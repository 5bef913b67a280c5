// A Call as a value: what run() and start() take, and what they refuse.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal_of(ProcessGroup& group, const Call& call) {
  std::string said;
  for (const bool asynchronous : {false, true}) {
    try {
      asynchronous ? group.start(call)->wait() : group.run(call);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid) << error.what();
      EXPECT_TRUE(said.empty() || said == error.what()) << said << " and " << error.what();
      said = error.what();
    }
  }
  return said;
}

TEST(Call, is_carried_out_by_run_and_by_start_alike) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> mine = {1.0F + static_cast<float>(group.rank())};
    std::vector<float> all(2);
    const Call gather{
        .op = Op::kAllGather, .input = std::span(mine), .output = Buffer(std::span(all))};
    group.run(gather);
    EXPECT_THAT(all, ElementsAre(1, 2));
    mine[0] *= 10;
    group.start(gather)->wait();
    EXPECT_THAT(all, ElementsAre(10, 20));
  });
}

TEST(Call, of_an_operation_with_a_function_of_its_own_is_refused) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    for (const Op op : {Op::kAllocate, Op::kNewGroup, Op::kSplit, Op::kTakeTurns}) {
      EXPECT_THAT(refusal_of(group, {.op = op}), HasSubstr("is no operation of run() and start()"))
          << name_of(op);
    }
    group.barrier();  // the group goes on
  });
}

TEST(Call, with_lists_is_refused_where_an_operation_has_no_form_on_many_buffers) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    for (const Op op :
         {Op::kReduce, Op::kGather, Op::kScatter, Op::kAllToAll, Op::kBarrier, Op::kAllGatherV,
          Op::kReduceScatterV, Op::kAllToAllV, Op::kSend, Op::kReceive}) {
      EXPECT_THAT(refusal_of(group, {.op = op, .lists = BufferLists{}}),
                  HasSubstr("has no form on many buffers; call it for each"))
          << name_of(op);
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace paceline
