// What happens when ranks do not mean the same thing: a typed error on every rank, never a wrong
// sum, never a hang.

#include <gtest/gtest.h>

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks;
using namespace std::chrono_literals;

struct Mismatch {
  const char* name;
  void (*odd)(ProcessGroup& group);   // what the last rank calls
  void (*even)(ProcessGroup& group);  // what the others call
};

std::vector<float> floats(std::size_t count) { return std::vector<float>(count, 1.0f); }

void all_reduce(ProcessGroup& group, std::size_t count, ReduceOp op = ReduceOp::kSum) {
  auto data = floats(count);
  group.all_reduce(std::span(data), op);
}

template <class T>
void all_reduce_of(ProcessGroup& group, std::size_t count) {
  std::vector<T> data(count, T(1));
  group.all_reduce(std::span(data));
}

void broadcast(ProcessGroup& group, int root) {
  auto data = floats(1000);
  group.broadcast(std::span(data), root);
}

void all_gather(ProcessGroup& group, std::size_t count) {
  const auto mine = floats(count);
  auto all = floats(count * static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(mine), std::span(all));
}

const Mismatch kMismatches[] = {
    {"count_smaller", [](ProcessGroup& g) { all_reduce(g, 999); },
     [](ProcessGroup& g) { all_reduce(g, 1000); }},
    {"count_larger", [](ProcessGroup& g) { all_reduce(g, 100'000); },
     [](ProcessGroup& g) { all_reduce(g, 1000); }},
    {"count_far_larger", [](ProcessGroup& g) { all_reduce(g, 9'000'000); },
     [](ProcessGroup& g) { all_reduce(g, 10); }},
    {"type_of_same_size", [](ProcessGroup& g) { all_reduce_of<std::int32_t>(g, 1000); },
     [](ProcessGroup& g) { all_reduce(g, 1000); }},
    {"type_of_other_size", [](ProcessGroup& g) { all_reduce_of<double>(g, 1000); },
     [](ProcessGroup& g) { all_reduce(g, 1000); }},
    {"sum_and_product", [](ProcessGroup& g) { all_reduce(g, 1000, ReduceOp::kProduct); },
     [](ProcessGroup& g) { all_reduce(g, 1000); }},
    {"sum_and_max_large", [](ProcessGroup& g) { all_reduce(g, 300'000, ReduceOp::kMax); },
     [](ProcessGroup& g) { all_reduce(g, 300'000); }},
    {"root", [](ProcessGroup& g) { broadcast(g, 1); }, [](ProcessGroup& g) { broadcast(g, 0); }},
    {"kind", [](ProcessGroup& g) { broadcast(g, 0); },
     [](ProcessGroup& g) { all_reduce(g, 1000); }},
    {"order",
     [](ProcessGroup& g) {
       broadcast(g, 0);
       all_reduce(g, 1000);
     },
     [](ProcessGroup& g) {
       all_reduce(g, 1000);
       broadcast(g, 0);
     }},
    {"allocation_and_sum", [](ProcessGroup& g) { g.allocate_symmetric(1000); },
     [](ProcessGroup& g) { all_reduce(g, 1000); }},
    {"allocation_sizes", [](ProcessGroup& g) { g.allocate_symmetric(1 << 20); },
     [](ProcessGroup& g) { g.allocate_symmetric(1 << 21); }},
    {"all_gather_counts", [](ProcessGroup& g) { all_gather(g, 11); },
     [](ProcessGroup& g) { all_gather(g, 10); }},
    {"barrier_and_all_reduce", [](ProcessGroup& g) { g.barrier(); },
     [](ProcessGroup& g) { all_reduce(g, 50'000); }},
    {"blocking_and_async_of_other_size",
     [](ProcessGroup& g) {
       auto data = floats(10);
       g.all_reduce_async(std::span(data))->wait();
     },
     [](ProcessGroup& g) { all_reduce(g, 1000); }},
};

class MismatchTest : public testing::TestWithParam<std::tuple<Mismatch, TransportKind, int>> {};

TEST_P(MismatchTest, is_a_typed_error_on_every_rank_at_once) {
  const auto& [mismatch, transport, world] = GetParam();
  const auto begin = std::chrono::steady_clock::now();
  const auto results =
      run_ranks(world,
                [&](ProcessGroup& group) {
                  all_reduce(group, 10);
                  (group.rank() == group.world_size() - 1 ? mismatch.odd : mismatch.even)(group);
                  ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
                },
                {.transport = transport, .group_timeout = 20s});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s)
      << "waited for the time-out instead of noticing";
  bool shows_both = false;
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_TRUE(result.error->code() == ErrorCode::kInvalid ||
                result.error->code() == ErrorCode::kAborted)
        << result.error->what();
    EXPECT_NE(std::string(result.error->what()).find("#2"), std::string::npos)
        << result.error->what();
    shows_both |= result.error->code() == ErrorCode::kInvalid;
  }
  EXPECT_TRUE(shows_both);
}

std::string case_name(const testing::TestParamInfo<MismatchTest::ParamType>& info) {
  const auto& [mismatch, transport, world] = info.param;
  return std::string(mismatch.name) + (transport == TransportKind::kTcp ? "_tcp_" : "_shared_") +
         std::to_string(world);
}

INSTANTIATE_TEST_SUITE_P(Matrix, MismatchTest,
                         testing::Combine(testing::ValuesIn(kMismatches),
                                          testing::Values(TransportKind::kLoopback,
                                                          TransportKind::kTcp),
                                          testing::Values(2, 3, 4)),
                         case_name);

class MissingTest : public testing::TestWithParam<TransportKind> {};

TEST_P(MissingTest, a_missing_rank_is_named_at_the_deadline) {
  const auto results = run_ranks(3,
                                 [&](ProcessGroup& group) {
                                   group.barrier();
                                   if (group.rank() == 2) {
                                     // Stays in the group without calling, until the others have
                                     // given up.
                                     EXPECT_THROW(group.recv(std::span<float>(), 0), Error);
                                     return;
                                   }
                                   all_reduce(group, 1000);
                                 },
                                 {.transport = GetParam(), .group_timeout = 300ms});
  for (int rank = 0; rank < 2; ++rank) {
    const auto& error = results[static_cast<std::size_t>(rank)].error;
    ASSERT_TRUE(error);
    EXPECT_TRUE(error->code() == ErrorCode::kTimeout || error->code() == ErrorCode::kAborted)
        << error->what();
    if (error->code() == ErrorCode::kTimeout) {
      EXPECT_NE(std::string(error->what()).find("rank 2"), std::string::npos) << error->what();
      EXPECT_NE(std::string(error->what()).find("all_reduce #2"), std::string::npos)
          << error->what();
    }
  }
}

TEST_P(MissingTest, one_call_too_many_is_an_error_that_says_who_left) {
  const auto results = run_ranks(2,
                                 [&](ProcessGroup& group) {
                                   all_reduce(group, 1000);
                                   if (group.rank() == 0) all_reduce(group, 1000);
                                 },
                                 {.transport = GetParam()});
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kPeerLost);
  EXPECT_NE(std::string(results[0].error->what()).find("rank 1"), std::string::npos);
  EXPECT_FALSE(results[1].error);
}

TEST_P(MissingTest, after_an_error_every_call_says_the_first_cause) {
  run_ranks(2,
            [&](ProcessGroup& group) {
              EXPECT_THROW(all_reduce(group, group.rank() == 0 ? 10 : 20), Error);
              try {
                group.barrier();
                ADD_FAILURE() << "a failed group went on";
              } catch (const Error& error) {
                EXPECT_NE(std::string(error.what()).find("#1"), std::string::npos) << error.what();
              }
            },
            {.transport = GetParam()});
}

TEST_P(MissingTest, abort_reaches_the_others_with_its_reason) {
  const auto results = run_ranks(3,
                                 [&](ProcessGroup& group) {
                                   group.barrier();
                                   if (group.rank() == 1) {
                                     group.abort("the loss is not finite");
                                     throw Error(ErrorCode::kInvalid, "own");
                                   }
                                   all_reduce(group, 100'000);
                                 },
                                 {.transport = GetParam()});
  for (const int rank : {0, 2}) {
    const auto& error = results[static_cast<std::size_t>(rank)].error;
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kAborted);
    EXPECT_NE(std::string(error->what()).find("the loss is not finite"), std::string::npos)
        << error->what();
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, MissingTest,
                         testing::Values(TransportKind::kLoopback, TransportKind::kTcp),
                         [](const auto& info) {
                           return std::string(info.param == TransportKind::kTcp ? "tcp" : "shared");
                         });

TEST(Ending, a_group_whose_work_is_complete_may_be_destroyed_at_once) {
  for (int i = 0; i < 100; ++i) {
    harness::run_ranks_ok(4,
                          [](ProcessGroup& group) {
                            for (int call = 0; call < 10; ++call) group.barrier_async()->wait();
                          },
                          {.transport = TransportKind::kTcp});
  }
}

TEST(Arguments, are_checked_before_anything_is_sent) {
  run_ranks(2, [](ProcessGroup& group) {
    auto data = floats(10);
    const auto view = std::span(data);
    EXPECT_THROW(group.broadcast(view, 2), Error);
    EXPECT_THROW(group.broadcast(view, -1), Error);
    EXPECT_THROW(group.all_gather(view, view), Error);
    EXPECT_THROW(group.reduce_scatter(view, view), Error);
    EXPECT_THROW(group.all_reduce(Buffer(nullptr, 10, Dtype::kFloat32)), Error);
    EXPECT_THROW(group.all_reduce(view, ReduceOp::kBitAnd), Error);
    EXPECT_THROW(group.send(view, group.rank()), Error);
    EXPECT_THROW(group.send(view, 7), Error);
    EXPECT_THROW(group.all_to_all(view, view), Error);
    EXPECT_THROW(group.allocate_symmetric(0), Error);
    EXPECT_THROW(group.new_group({0, 0}), Error);
    std::vector<std::int32_t> integers(10);
    try {
      group.all_reduce(std::span(integers), ReduceOp::kMean);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    }
    group.all_reduce(view);  // the group is as good as before
    EXPECT_EQ(data[0], 2.0f);
  });
}

}  // namespace
}  // namespace paceline
