// A rank that arrives after the others have given up gets an error about their failure, whichever
// collective it calls.

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"

namespace paceline {
namespace {

using harness::run_process_ranks;
using harness::SharedCounter;
using namespace std::chrono_literals;

// Small, so that ranks that share memory meet only once in a call.
constexpr std::size_t kCount = 16;
const std::vector<std::function<void(ProcessGroup&, std::span<float>, const CollectiveOptions&)>>
    kCalls = {
        [](auto& group, auto, const auto& options) { group.barrier(options); },
        [](auto& group, auto data, const auto& options) {
          group.all_reduce(data.first(kCount), ReduceOp::kSum, options);
        },
        [](auto& group, auto data, const auto& options) {
          group.broadcast(data.first(kCount), 0, options);
        },
        [](auto& group, auto data, const auto& options) {
          group.all_gather(data.subspan(kCount, 3 * kCount), data.first(kCount), options);
        },
        [](auto& group, auto data, const auto& options) {
          group.reduce_scatter(data.first(kCount), data.subspan(kCount, 3 * kCount), ReduceOp::kSum,
                               options);
        },
        [](auto& group, auto data, const auto& options) {
          group.all_to_all(data.subspan(3 * kCount, 3 * kCount), data.first(3 * kCount), options);
        },
};

constexpr std::size_t kBroadcast = 2;

class LateTest : public testing::TestWithParam<std::tuple<TransportKind, bool>> {};

TEST_P(LateTest, a_rank_that_arrives_after_the_time_out_of_the_others_is_told_and_does_not_pass) {
  const auto [transport, is_symmetric] = GetParam();
  for (std::size_t i = 0; i < kCalls.size(); ++i) {
    // Over sockets the root of a small broadcast has finished before any other rank arrives, so it
    // does not fail.
    if (transport == TransportKind::kTcp && i == kBroadcast) continue;
    const auto& call = kCalls[i];
    SharedCounter failed;
    const auto results = run_process_ranks(
        3,
        [&](ProcessGroup& group) {
          const auto shared = group.allocate_symmetric(6 * kCount * sizeof(float));
          std::vector<float> ordinary(6 * kCount);
          const auto data = is_symmetric ? shared.as<float>() : std::span(ordinary);
          group.barrier();
          const CollectiveOptions options{.timeout = 300ms};
          if (group.rank() == 2) failed.wait_for(2, Deadline::after(20s));
          try {
            call(group, data, options);
          } catch (const Error&) {
            failed.add();
            throw;
          }
          return std::string("nothing was thrown");
        },
        {.transport = transport});
    for (const auto& result : results) ASSERT_TRUE(result.threw) << result.report;
    EXPECT_EQ(results[2].code, ErrorCode::kAborted) << results[2].report;
    EXPECT_EQ(results[2].context.ranks, std::vector{2}) << results[2].report;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, LateTest,
                         testing::Combine(testing::Values(TransportKind::kShm, TransportKind::kTcp),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_symmetric" : "_ordinary");
                         });

}  // namespace
}  // namespace paceline
