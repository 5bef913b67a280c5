// A Call as a value: which calls run() and start() accept, and which they refuse.

#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/op_traits.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using harness::Says;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string refusal_of(ProcessGroup& group, const Call& call) {
  std::string said;
  for (const bool asynchronous : {false, true}) {
    try {
      asynchronous ? engine(group).start(call)->wait() : engine(group).run(call);
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
    engine(group).run(gather);
    EXPECT_THAT(all, ElementsAre(1, 2));
    mine[0] *= 10;
    engine(group).start(gather)->wait();
    EXPECT_THAT(all, ElementsAre(10, 20));
  });
}

// Copies of which one cannot be made.
class NoCopies final : public HostCopies {
 public:
  void* ready() const override { return nullptr; }
  void wait_for(void*) const override {}
  void fetch(Deadline) const override { throw std::bad_alloc(); }
  DeviceEvent deliver() const override { return nullptr; }
  void settle(Deadline) const override {}
};

TEST(Call, that_lacks_memory_before_its_collective_fails_on_every_rank) {
  harness::run_ranks(3, [](ProcessGroup& group) {
    std::vector<float> data(5);
    CallOptions options;
    if (group.rank() == 1) options.order = std::make_shared<NoCopies>();
    const auto work = engine(group).start(
        {.op = Op::kAllReduce, .input = std::span(data), .output = Buffer(std::span(data))},
        options);
    expect_error(group.rank() == 1 ? ErrorCode::kSystem : ErrorCode::kAborted,
                 {group.rank() == 1 ? "" : "rank 1: a call failed", "std::bad_alloc"},
                 [&] { work->wait(); });
  });
}

TEST(Call, of_an_operation_with_a_function_of_its_own_is_refused) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    for (const Op op : {Op::kAllocate, Op::kNewGroup, Op::kSplit, Op::kTakeTurns, Op::kVisit}) {
      EXPECT_THAT(refusal_of(group, {.op = op}), Says("call.not_of_run")) << name_of(op);
    }
    group.barrier();  // the group still works
  });
}

TEST(Call, divides_only_a_mean_and_by_a_number_that_can_be) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> data = {7, 14};
    const Buffer all(std::span<float>(data.data(), data.size()));
    const Call sum{.op = Op::kAllReduce, .input = all, .output = all, .divisor = 2};
    EXPECT_THAT(refusal_of(group, sum), Says("call.divisor_without_mean", 2));
    const Call barrier{.op = Op::kBarrier, .reduce_op = ReduceOp::kMean, .divisor = 2};
    EXPECT_THAT(refusal_of(group, barrier), Says("call.divisor_without_mean", 2));
    for (const std::uint32_t divisor : {0U, 1U << 31U}) {
      Call mean = sum;
      mean.reduce_op = ReduceOp::kMean;
      mean.divisor = divisor;
      EXPECT_THAT(refusal_of(group, mean), Says("call.divisor_out_of_range", divisor));
    }
    const std::array<Buffer, 1> lists = {all};
    engine(group).run({.op = Op::kAllReduce,
                       .reduce_op = ReduceOp::kMean,
                       .divisor = 7,
                       .lists = BufferLists{{}, lists}});
    EXPECT_THAT(data, ElementsAre(2, 4));
  });
}

TEST(Call, whose_divisor_is_another_elsewhere_is_refused_with_both) {
  const auto results = harness::run_ranks(2, [](ProcessGroup& group) {
    std::vector<float> data(100);
    const Buffer all(std::span<float>(data.data(), data.size()));
    engine(group).run({.op = Op::kAllReduce,
                       .input = all,
                       .output = all,
                       .reduce_op = ReduceOp::kMean,
                       .divisor = group.rank() == 0 ? 4U : 8U});
  });
  for (const auto& [error] : results) {
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("mean by 4"), HasSubstr("mean by 8"),
                                     Not(Says("mismatch.same_counts"))));
  }
}

TEST(Call, with_lists_is_refused_where_an_operation_has_no_form_on_many_buffers) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    for (const Op op :
         {Op::kReduce, Op::kGather, Op::kScatter, Op::kAllToAll, Op::kBarrier, Op::kAllGatherV,
          Op::kReduceScatterV, Op::kAllToAllV, Op::kSend, Op::kReceive}) {
      EXPECT_THAT(refusal_of(group, {.op = op, .lists = BufferLists{}}),
                  Says("call.takes_one_buffer"))
          << name_of(op);
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace paceline
