// Sums by package are made only where all ranks agree on it: packages that allow it, sizes,
// options, groups made of a group, calls that do not match.

#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/collectives/made_up_packages.h"

namespace paceline {
namespace {

using harness::RanksOptions;
using harness::run_ranks;
using harness::run_ranks_ok;
using testing::HasSubstr;
using testing::Not;

TEST(ByPackage, is_left_where_one_ranks_memory_is_of_another_kind) {
  for (const bool by_package : {false, true}) {
    run_ranks_ok(
        4,
        [](ProcessGroup& group) {
          const std::size_t count = 100'003;
          const auto shared = group.allocate_symmetric(count * sizeof(std::int64_t));
          std::vector<std::int64_t> plain(count);
          for (int odd = 0; odd < 4; ++odd) {
            const auto data =
                group.rank() == odd ? std::span(plain) : shared.as<std::int64_t>().first(count);
            std::fill(data.begin(), data.end(), group.rank());
            group.all_reduce(data);
            for (const auto value : data) ASSERT_EQ(value, 6);
          }
        },
        on_packages(kTwoOfTwo, by_package));
  }
}

TEST(ByPackage, is_not_used_where_a_packages_ranks_are_not_a_whole_subtree_or_are_unknown) {
  for (const std::vector<int>& packages : {std::vector<int>{0, 1, 0, 1},
                                           {0, 0, 0, 1},
                                           {0, 0, 0, 0},
                                           {0, 0, 1, -1},
                                           {-1, -1, -1, -1}}) {
    run_ranks_ok(
        4,
        [](ProcessGroup& group) {
          EXPECT_FALSE(is_by_package(group));
          EXPECT_THAT(group.explain(Op::kAllReduce, Dtype::kFloat32, 1 << 20),
                      HasSubstr("not by package: "));
          std::vector<std::int32_t> data(200'000, group.rank());
          group.all_reduce(std::span(data));
          ASSERT_EQ(data, std::vector<std::int32_t>(200'000, 6));
        },
        on_packages(packages));
  }
}

TEST(ByPackage, is_for_large_sums_where_it_was_asked_for) {
  for (const bool by_package : {false, true}) {
    run_ranks_ok(
        4,
        [&](ProcessGroup& group) {
          const auto way = [&](Op op, std::size_t count) {
            return group.explain(op, Dtype::kFloat32, count);
          };
          EXPECT_THAT(way(Op::kAllReduce, 1 << 18),
                      HasSubstr(by_package ? "memory: by_package" : "memory: direct"));
          EXPECT_THAT(way(Op::kAllReduce, 1 << 10), Not(HasSubstr("by_package")));
          EXPECT_THAT(way(Op::kBroadcast, 1 << 20), HasSubstr("memory: direct"));
          std::vector<std::int32_t> data(1 << 19, group.rank());
          group.all_reduce(std::span(data));
          ASSERT_EQ(data, std::vector<std::int32_t>(1 << 19, 6));
        },
        on_packages(kTwoOfTwo, by_package));
  }
}

TEST(ByPackage, is_known_to_groups_made_of_a_group) {
  run_ranks_ok(
      8,
      [](ProcessGroup& group) {
        EXPECT_TRUE(is_by_package(group));
        const auto same = group.split(0, 0);
        EXPECT_TRUE(is_by_package(*same));
        const auto middle = group.new_group({2, 3, 4, 5});
        if (middle->is_member()) {
          EXPECT_TRUE(is_by_package(*middle));
        }
        const auto in_turn = group.new_group({0, 4, 1, 5});
        if (in_turn->is_member()) {
          EXPECT_FALSE(is_by_package(*in_turn));
        }
        const auto half = group.split(group.rank() / 4, 0);
        EXPECT_FALSE(is_by_package(*half));  // one package
        if (!middle->is_member()) return;
        std::vector<std::int32_t> data(300'000, group.rank());
        middle->all_reduce(std::span(data));
        ASSERT_EQ(data, std::vector<std::int32_t>(300'000, 14));
      },
      on_packages(kTwoOfFour));
}

TEST(ByPackage, ranks_that_choose_differently_are_told_when_the_group_forms) {
  for (const int world : {2, 4}) {
    RanksOptions options;
    options.adjust = [](int rank, GroupOptions& group) {
      if (rank == 1) group.planning.by_package = true;
    };
    const auto results = run_ranks(
        world, [](ProcessGroup&) { ADD_FAILURE() << "noticed nothing"; }, options);
    for (const auto& result : results) ASSERT_TRUE(result.error);
    EXPECT_EQ(results[1].error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(results[1].error->what(), HasSubstr("PACELINE_BY_PACKAGE"));
  }
}

TEST(ByPackage, a_mismatch_is_an_error_on_every_rank_before_a_byte_is_written) {
  using Body = std::function<void(ProcessGroup&, std::span<float>)>;
  const std::vector<std::pair<Body, Body>> pairs = {
      {[](ProcessGroup& g, std::span<float> d) { g.all_reduce(d); },
       [](ProcessGroup& g, std::span<float> d) { g.all_reduce(d.first(d.size() - 1)); }},
      {[](ProcessGroup& g, std::span<float> d) { g.all_reduce(d); },
       [](ProcessGroup& g, std::span<float> d) { g.all_reduce(d, ReduceOp::kMax); }},
      {[](ProcessGroup& g, std::span<float> d) { g.all_reduce(d); },
       [](ProcessGroup& g, std::span<float> d) { g.reduce(d, 0); }},
      {[](ProcessGroup& g, std::span<float> d) { g.reduce(d, 1); },
       [](ProcessGroup& g, std::span<float> d) { g.reduce(d, 0); }},
      {[](ProcessGroup& g, std::span<float> d) { g.all_reduce(d); },
       [](ProcessGroup& g, std::span<float> d) { g.all_reduce(d.first(10)); }},
      {[](ProcessGroup& g, std::span<float> d) { g.all_reduce(d); },
       [](ProcessGroup& g, std::span<float> d) {
         g.all_reduce(Buffer(reinterpret_cast<std::byte*>(d.data()), d.size(), Dtype::kInt32));
       }},
      {[](ProcessGroup& g, std::span<float> d) {
         const std::size_t block = d.size() / 4;
         g.reduce_scatter(d, d.subspan(static_cast<std::size_t>(g.rank()) * block, block));
       },
       [](ProcessGroup& g, std::span<float> d) { g.all_reduce(d); }},
      {[](ProcessGroup& g, std::span<float> d) { g.all_reduce(d); },
       [](ProcessGroup& g, std::span<float>) { g.barrier(); }},
  };
  for (const bool is_symmetric : {false, true}) {
    for (const int odd : {0, 3}) {
      for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
        const std::size_t count = 400'000;
        auto options = on_packages(kTwoOfTwo);
        const auto results = run_ranks(
            4,
            [&](ProcessGroup& group) {
              const auto shared = group.allocate_symmetric(count * sizeof(float));
              std::vector<float> plain(count);
              const auto data = is_symmetric ? shared.as<float>().first(count) : std::span(plain);
              std::fill(data.begin(), data.end(), 7.0f);
              const bool is_odd = group.rank() == odd;
              try {
                (is_odd ? pairs[pair].second : pairs[pair].first)(group, data);
                ADD_FAILURE() << "rank " << group.rank() << " noticed nothing in " << pair;
              } catch (const Error&) {
                EXPECT_EQ(std::count(data.begin(), data.end(), 7.0f),
                          static_cast<std::ptrdiff_t>(count));
                throw;
              }
            },
            options);
        for (const auto& result : results) {
          ASSERT_TRUE(result.error) << pair;
          EXPECT_TRUE(result.error->code() == ErrorCode::kInvalid ||
                      result.error->code() == ErrorCode::kAborted)
              << result.error->what();
          EXPECT_THAT(result.error->what(), HasSubstr("do not match"));
        }
      }
    }
  }
}

}  // namespace
}  // namespace paceline
