// A rank that refuses a call, or ends with an exception, while the other ranks wait for it: their
// errors repeat its text.

#include <array>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/process_group.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void sum(ProcessGroup& group) {
  int value = 1;
  group.all_reduce(std::span(&value, 1));
}

// Sums up overlapping buffers.
void make_refused_call(ProcessGroup& group, bool is_async) {
  std::array<int, 4> values{};
  const auto all = std::span(values);
  group.all_reduce(all.first(3), all.last(3), ReduceOp::kSum, {.async_op = is_async})->wait();
}

TEST(Refusal, that_makes_a_rank_leave_is_in_the_error_of_every_rank) {
  for (const bool is_async : {false, true}) {
    const auto results = harness::run_ranks(3, [&](ProcessGroup& group) {
      sum(group);
      if (group.rank() == 1) make_refused_call(group, is_async);
      sum(group);
    });
    for (const auto& result : results) {
      ASSERT_TRUE(result.error);
      EXPECT_THAT(result.error->what(),
                  HasSubstr("rank 1: all_reduce: input and output overlap; the shorter one"));
    }
    EXPECT_THAT(results[0].error->what(), HasSubstr("has left the group (it refused a call: "));
    EXPECT_EQ(results[0].error->ranks(), std::vector{1});
  }
}

TEST(Refusal, before_a_valid_call_is_not_the_reason_for_leaving) {
  const auto results = harness::run_ranks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) {
      EXPECT_THROW(make_refused_call(group, false), Error);
    }
    sum(group);
    if (group.rank() == 0) sum(group);
  });
  ASSERT_TRUE(results[0].error);
  EXPECT_THAT(results[0].error->what(),
              AllOf(HasSubstr("has left the group;"), Not(HasSubstr("overlap"))));
}

TEST(UncaughtException, of_a_rank_is_in_the_error_of_every_rank) {
  const auto results = harness::run_process_ranks(3, [](ProcessGroup& group) -> std::string {
    sum(group);
    if (group.rank() == 1) {
      std::thread([] { throw std::runtime_error("no such key: learning_rate"); }).join();
    }
    sum(group);
    return "";
  });
  EXPECT_EQ(results[1].exit_code, 1);
  for (const int rank : {0, 2}) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(result.threw);
    EXPECT_STREQ(to_string(result.code), to_string(ErrorCode::kPeerLost));
    EXPECT_THAT(result.report, HasSubstr("group world was aborted by rank "));
    EXPECT_THAT(result.report, HasSubstr("rank 1: std::runtime_error: no such key: learning_rate"));
    EXPECT_EQ(result.context.ranks, std::vector{1});
  }
}

}  // namespace
}  // namespace paceline
