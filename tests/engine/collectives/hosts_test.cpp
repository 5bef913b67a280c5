// Groups that span hosts, and every algorithm over sockets. The ranks are threads that are declared
// to be on different hosts, so they share memory with some ranks and use TCP for the others.

#include <cstring>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "tests/engine/collectives/sample_values.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::RanksOptions;
using harness::run_ranks;
using harness::run_ranks_ok;
using namespace std::chrono_literals;

struct HostsSetting {
  const char* name;
  std::vector<int> host_of;
  std::optional<Algorithm> algorithm;
};

RanksOptions options_for(const HostsSetting& setting) {
  RanksOptions options;
  options.adjust = [setting](int rank, GroupOptions& group) {
    group.link.host = "h" + std::to_string(setting.host_of[static_cast<std::size_t>(rank)]);
    group.planning.algorithm = setting.algorithm;
  };
  return options;
}

// The results of all operations on a rank, so that settings can be compared bit for bit.
std::vector<float> all_results(ProcessGroup& group, std::size_t count) {
  const auto world = static_cast<std::size_t>(group.world_size());
  std::vector<float> results;
  const auto keep = [&](const std::vector<float>& part) {
    results.insert(results.end(), part.begin(), part.end());
  };
  auto data = random_values(group.rank(), count);
  group.all_reduce(std::span(data));
  keep(data);
  std::vector<float> other(count);
  data = random_values(group.rank(), count);
  group.all_reduce(std::span(other), ConstBuffer(std::span(data)), ReduceOp::kMean);
  keep(other);
  for (const int root : {0, group.world_size() - 1}) {
    data = random_values(group.rank(), count);
    group.broadcast(std::span(data), root);
    keep(data);
    data = random_values(group.rank(), count);
    group.reduce(std::span(data), root);
    keep(data);
  }
  data = random_values(group.rank(), count);
  std::vector<float> all(count * world);
  group.all_gather(std::span(all), std::span(data));
  keep(all);
  const auto wide = random_values(group.rank(), count * world);
  std::vector<float> part(count);
  group.reduce_scatter(std::span(part), std::span(wide));
  keep(part);
  group.all_to_all(std::span(all), std::span(wide));
  keep(all);
  // 16-bit sums of the same random bits.
  std::vector<std::uint16_t> brains(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &data[i], sizeof bits);
    brains[i] = static_cast<std::uint16_t>(bits >> 16);
  }
  group.all_reduce(Buffer(brains.data(), count, Dtype::kBfloat16));
  for (const auto brain : brains) results.push_back(brain);
  group.barrier();
  return results;
}

const std::vector<std::size_t> kCounts = {0, 1, 65, 5000, 120'001};

class HostsTest : public testing::TestWithParam<HostsSetting> {};

TEST_P(HostsTest, give_the_bits_of_one_host) {
  const auto& setting = GetParam();
  const int world = static_cast<int>(setting.host_of.size());
  std::vector<std::vector<float>> wanted(static_cast<std::size_t>(world));
  for (const auto count : kCounts) {
    run_ranks_ok(world, [&](ProcessGroup& group) {
      wanted[static_cast<std::size_t>(group.rank())] = all_results(group, count);
    });
    run_ranks_ok(
        world,
        [&](ProcessGroup& group) {
          const auto results = all_results(group, count);
          const auto& expected = wanted[static_cast<std::size_t>(group.rank())];
          ASSERT_EQ(results.size(), expected.size());
          ASSERT_TRUE(results.empty() || std::memcmp(results.data(), expected.data(),
                                                     results.size() * sizeof(float)) == 0)
              << "rank " << group.rank() << ", count " << count;
        },
        options_for(setting));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, HostsTest,
    testing::Values(
        HostsSetting{"two_of_two", {0, 0, 1, 1}, {}},
        HostsSetting{"two_of_two_hierarchy", {0, 0, 1, 1}, Algorithm::kHierarchy},
        HostsSetting{"two_of_three_hierarchy", {0, 0, 0, 1, 1, 1}, Algorithm::kHierarchy},
        HostsSetting{"in_turn_hierarchy", {0, 1, 0, 1}, Algorithm::kHierarchy},
        HostsSetting{"unequal_hierarchy", {0, 0, 0, 1, 2}, Algorithm::kHierarchy},
        HostsSetting{
            "six_of_two_hierarchy", {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}, Algorithm::kHierarchy},
        HostsSetting{"direct", {0, 0, 1, 1, 2}, Algorithm::kDirect},
        HostsSetting{"one_shot", {0, 1, 2}, Algorithm::kOneShot},
        HostsSetting{"tree", {0, 1, 2, 3, 4}, Algorithm::kTree},
        HostsSetting{"doubling", {0, 0, 1, 1, 2}, Algorithm::kDoubling},
        HostsSetting{"halving", {0, 0, 1, 1, 2, 2, 2}, Algorithm::kHalving},
        HostsSetting{"bruck", {0, 1, 2, 3, 4}, Algorithm::kBruck},
        HostsSetting{"chain", {0, 0, 1, 1}, Algorithm::kChain}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Hosts, say_how_they_are_joined_and_why) {
  run_ranks_ok(
      4,
      [](ProcessGroup& group) {
        EXPECT_EQ(group.transport(), "shm+tcp");
        EXPECT_EQ(group.hosts().host_of, (std::vector<int>{0, 0, 1, 1}));
        const auto text = group.explain(Op::kAllReduce, Dtype::kFloat32, 4 << 20);
        EXPECT_EQ(text.find("* hierarchy") == std::string::npos, false) << text;
      },
      options_for({"", {0, 0, 1, 1}, {}}));
}

// The pieces of a call take turns in a few areas: a rank that is slow must not see a later piece.
class HostsPieces : public testing::TestWithParam<HostsSetting> {};

TEST_P(HostsPieces, of_large_calls_do_not_disturb_each_other) {
  run_ranks_ok(
      4,
      [](ProcessGroup& group) {
        const std::size_t count = 3'000'017;
        for (int round = 0; round < 3; ++round) {
          std::vector<std::int32_t> data(count);
          for (std::size_t i = 0; i < count; ++i) {
            data[i] = static_cast<std::int32_t>(i) + group.rank() + round;
          }
          group.all_reduce(std::span(data));
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(data[i], 4 * (static_cast<std::int32_t>(i) + round) + 6);
          }
          group.broadcast(std::span(data), 3);
          const auto all = data;
          group.reduce(std::span(data), 1);
          for (std::size_t i = 0; i < count && group.rank() == 1; ++i) {
            ASSERT_EQ(data[i], 4 * all[i]);
          }
          std::vector<std::int32_t> part(count / 4);
          group.reduce_scatter(std::span(part), std::span(all).first(4 * part.size()));
          for (std::size_t i = 0; i < part.size(); ++i) {
            ASSERT_EQ(part[i], 4 * all[static_cast<std::size_t>(group.rank()) * part.size() + i]);
          }
        }
      },
      options_for(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(
    Algorithms, HostsPieces,
    testing::Values(HostsSetting{"hierarchy", {0, 0, 1, 1}, Algorithm::kHierarchy},
                    HostsSetting{"direct", {0, 1, 2, 3}, Algorithm::kDirect},
                    HostsSetting{"planned", {0, 1, 2, 2}, {}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Hosts, a_ring_sums_only_when_it_is_asked_for) {
  for (const bool allows : {false, true}) {
    RanksOptions options;
    options.adjust = [&](int rank, GroupOptions& group) {
      group.link.host = std::to_string(rank);
      group.planning.allows_any_order = allows;
    };
    run_ranks_ok(
        3,
        [&](ProcessGroup& group) {
          const auto text = group.explain(Op::kAllReduce, Dtype::kFloat32, 1 << 20);
          EXPECT_EQ(text.find("ring") != std::string::npos, allows) << text;
        },
        options);
  }
  run_ranks_ok(
      5,
      [](ProcessGroup& group) {
        std::vector<std::int64_t> data(1000, group.rank());
        group.all_reduce(std::span(data));
        EXPECT_EQ(data, std::vector<std::int64_t>(1000, 10));
        std::vector<std::int64_t> part(200);
        group.reduce_scatter(std::span(part), std::span(data));
        EXPECT_EQ(part, std::vector<std::int64_t>(200, 50));
      },
      options_for({"", {0, 1, 2, 3, 4}, Algorithm::kRing}));
}

TEST(Hosts, ranks_that_choose_differently_are_told_when_the_group_forms) {
  RanksOptions options;
  options.group_timeout = 20s;
  options.adjust = [](int rank, GroupOptions& group) {
    group.link.host = std::to_string(rank);
    if (rank == 1) group.planning.algorithm = Algorithm::kRing;
  };
  const auto results = run_ranks(
      3, [](ProcessGroup&) {}, options);
  ASSERT_TRUE(results[1].error);
  EXPECT_EQ(results[1].error->code(), ErrorCode::kInvalid);
}

// One rank of four or five makes a different call, with every algorithm except the hierarchy.
// mismatch_layouts_test.cpp tests hierarchies and every pair of calls.
class HostsMismatch : public testing::TestWithParam<std::tuple<HostsSetting, int>> {};

TEST_P(HostsMismatch, is_an_error_on_every_rank_at_once) {
  const auto& [setting, odd] = GetParam();
  const int world = static_cast<int>(setting.host_of.size());
  const std::vector<std::function<void(ProcessGroup&)>> calls = {
      [](ProcessGroup& group) {
        std::vector<float> data(100'000);
        group.all_reduce(std::span(data));
      },
      [](ProcessGroup& group) {
        std::vector<float> data(10);
        group.all_reduce(std::span(data));
      },
      [](ProcessGroup& group) {
        std::vector<float> data(100'000);
        group.broadcast(std::span(data), 1);
      },
      [](ProcessGroup& group) { group.barrier(); },
      [](ProcessGroup& group) {
        std::vector<float> data(10);
        std::vector<float> all(10 * static_cast<std::size_t>(group.world_size()));
        group.all_gather(std::span(all), std::span(data));
      },
  };
  for (std::size_t common = 0; common < calls.size(); ++common) {
    const std::size_t other = (common + 1) % calls.size();
    const auto begin = std::chrono::steady_clock::now();
    auto options = options_for(setting);
    options.group_timeout = 20s;
    const auto results = run_ranks(
        world,
        [&](ProcessGroup& group) {
          group.barrier();
          calls[group.rank() == odd ? other : common](group);
          ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
        },
        options);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s) << common;
    for (const auto& result : results) {
      ASSERT_TRUE(result.error) << common;
      EXPECT_TRUE(result.error->code() == ErrorCode::kInvalid ||
                  result.error->code() == ErrorCode::kAborted)
          << result.error->what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Algorithms, HostsMismatch,
    testing::Combine(testing::Values(HostsSetting{"tree", {0, 1, 2, 3, 4}, Algorithm::kTree},
                                     HostsSetting{
                                         "doubling", {0, 1, 2, 3, 4}, Algorithm::kDoubling},
                                     HostsSetting{"halving", {0, 1, 2, 3, 4}, Algorithm::kHalving},
                                     HostsSetting{"ring", {0, 1, 2, 3, 4}, Algorithm::kRing},
                                     HostsSetting{"chain", {0, 1, 2, 3}, Algorithm::kChain}),
                     testing::Values(0, 2, 3)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_odd_" +
             std::to_string(std::get<1>(info.param));
    });

// The error names the missing rank, even far away in a tree, and not the ranks that also wait for
// it.
TEST(HostsMissing, a_time_out_names_the_missing_rank) {
  for (const auto algorithm : {Algorithm::kDoubling, Algorithm::kHierarchy}) {
    auto options = options_for({"", {0, 0, 1, 1, 2, 2}, algorithm});
    options.group_timeout = 2s;
    const auto results = run_ranks(
        6,
        [](ProcessGroup& group) {
          group.barrier();
          if (group.rank() == 5) {
            EXPECT_THROW(group.recv(std::span<float>(), 0, 0, {.timeout = 60s}), Error);
            return;
          }
          std::vector<float> data(1000);
          group.all_reduce(std::span(data));
        },
        options);
    for (int rank = 0; rank < 5; ++rank) {
      const auto& error = results[static_cast<std::size_t>(rank)].error;
      ASSERT_TRUE(error);
      EXPECT_EQ(error->ranks(), std::vector{5}) << error->what();
    }
  }
}

}  // namespace
}  // namespace paceline
