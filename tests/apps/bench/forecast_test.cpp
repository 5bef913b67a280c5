#include "apps/bench/forecast.h"

#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paceline/engine/collectives/op_traits.h"

#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using harness::Says;

Planner planner_for(int hosts, int ranks) {
  return Planner(Hosts::blocks(hosts, ranks), {}, /*shares_memory=*/ranks > 1);
}

// A large all-reduce cannot be faster than the link allows: 2 (p-1)/p n bytes pass the interface of
// each host.
TEST(Forecast, comes_close_to_the_bound_of_the_link_and_never_below) {
  const std::size_t bytes = 64 << 20;
  for (const int hosts : {2, 4, 16}) {
    const Planner planner = planner_for(hosts, 1);
    const auto rows = forecast(planner, Op::kAllReduce, Dtype::kFloat32, bytes, Which::kChosen);
    ASSERT_EQ(rows.size(), 1u);
    ASSERT_TRUE(rows[0].simulated);
    const double bound = 2.0 * (hosts - 1) / hosts * static_cast<double>(bytes) /
                         planner.costs().network.bytes_per_s;
    EXPECT_GE(rows[0].simulated->seconds, bound) << hosts;
    EXPECT_LE(rows[0].simulated->seconds, 1.6 * bound) << hosts;
    EXPECT_EQ(rows[0].bytes, bytes);
    EXPECT_EQ(rows[0].world_size, hosts);
  }
}

TEST(Forecast, of_all_algorithms_has_the_chosen_one_first) {
  const auto rows =
      forecast(planner_for(4, 2), Op::kAllReduce, Dtype::kFloat32, 1 << 20, Which::kAll);
  ASSERT_GE(rows.size(), 5u);
  EXPECT_TRUE(rows[0].is_chosen);
  EXPECT_EQ(rows[0].candidate.algorithm, Algorithm::kHierarchy);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    EXPECT_FALSE(rows[i].is_chosen);
    EXPECT_GE(rows[i].candidate.seconds, rows[0].candidate.seconds);
  }
}

TEST(Forecast, carries_4096_ranks) {
  const auto rows =
      forecast(planner_for(128, 32), Op::kAllReduce, Dtype::kFloat32, 1 << 20, Which::kChosen);
  ASSERT_TRUE(rows[0].simulated) << rows[0].refusal;
  EXPECT_GT(rows[0].simulated->seconds, 0);
}

TEST(Forecast, simulates_every_operation_among_4096_ranks) {
  for (const auto& [ranks, bytes] :
       {std::pair(1, std::size_t{64} << 20), std::pair(8, std::size_t{64} << 10)}) {
    const Planner planner = planner_for(4096 / ranks, ranks);
    for (const Operation operation : measurable_ops()) {
      if (!is_plannable(operation)) continue;
      const Op op = operation.op;
      const auto rows = forecast(planner, op, Dtype::kFloat32, bytes, Which::kChosen);
      EXPECT_TRUE(rows[0].simulated) << paceline::name_of(op) << ": " << rows[0].refusal;
    }
  }
}

// A simulation in parts predicts nearly the same time as a simulation of the whole call.
TEST(Forecast, of_a_direct_reduce_in_parts_is_close) {
  for (const std::size_t count : {std::size_t{1} << 18, std::size_t{1} << 24}) {
    for (const int hosts : {4, 16, 64}) {
      const Planner planner = planner_for(hosts, 2);
      const SimulatedCall call{Op::kReduce, Dtype::kFloat32, count, Algorithm::kDirect};
      const auto whole = simulate_call(call, planner);
      const auto parts = simulate_reduce_in_parts(call, planner);
      EXPECT_NEAR(parts.seconds / whole.seconds, 1, 0.1) << hosts << " hosts, " << count;
    }
  }
}

TEST(Forecast, of_a_chain_in_parts_is_close) {
  for (const auto& [hosts, ranks] : std::vector<std::pair<int, int>>{{32, 1}, {64, 4}, {1, 64}}) {
    for (const std::size_t chunk : {std::size_t{1} << 12, std::size_t{1} << 16}) {
      const Planner planner = planner_for(hosts, ranks);
      const SimulatedCall call{Op::kBroadcast, Dtype::kFloat32, 1 << 20, Algorithm::kChain, chunk};
      const auto whole = simulate_call(call, planner);
      const auto parts = simulate_chain_in_parts(call, planner);
      EXPECT_NEAR(parts.seconds / whole.seconds, 1, 0.02) << hosts << "x" << ranks << " " << chunk;
      EXPECT_NEAR(static_cast<double>(parts.network_bytes + 1) /
                      static_cast<double>(whole.network_bytes + 1),
                  1, 0.01);
    }
  }
}

TEST(Forecast, of_hosts_with_many_ranks_in_parts_is_close) {
  const Planner planner = planner_for(4, 128);
  for (const auto& [op, algorithm] :
       std::vector<std::pair<Op, Algorithm>>{{Op::kAllToAll, Algorithm::kDirect},
                                             {Op::kAllGather, Algorithm::kRing},
                                             {Op::kReduceScatter, Algorithm::kDirect},
                                             {Op::kAllReduce, Algorithm::kDirect}}) {
    for (const std::size_t block : {std::size_t{512}, std::size_t{4} << 10}) {
      const std::size_t count = op == Op::kAllReduce ? block * 512 : block;
      const SimulatedCall call{op, Dtype::kFloat32, count, algorithm};
      const auto whole = simulate_call(call, planner);
      const auto parts = simulate_hosts_in_parts(call, planner);
      const auto what =
          fmt::format("{} by {} of {}", paceline::name_of(op), name_of(algorithm), count);
      EXPECT_NEAR(parts.seconds / whole.seconds, 1, 0.1) << what;
      EXPECT_NEAR(static_cast<double>(parts.num_messages) / static_cast<double>(whole.num_messages),
                  1, 0.01)
          << what;
      EXPECT_NEAR(
          static_cast<double>(parts.network_bytes) / static_cast<double>(whole.network_bytes), 1,
          0.01)
          << what;
    }
  }
}

TEST(Forecast, leaves_out_what_takes_long_beside_the_chosen_algorithm) {
  const auto rows =
      forecast(planner_for(4, 1000), Op::kAllReduce, Dtype::kFloat32, 1 << 20, Which::kAll);
  ASSERT_GT(rows.size(), 1u);
  EXPECT_TRUE(rows[0].simulated) << rows[0].refusal;
  bool leaves_out = false;
  for (const Forecast& row : rows) {
    if (row.simulated) continue;
    leaves_out = true;
    EXPECT_THAT(row.refusal,
                Says("simulate.too_long_beside", paceline::name_of(row.candidate.algorithm)));
  }
  EXPECT_TRUE(leaves_out);
}

TEST(Forecast, says_why_it_was_not_simulated) {
  // The last rank's chunk is smaller, so not all ranks are alike, and each rank sends to every
  // other.
  const Planner planner(Hosts::blocks(4096, 1), {.algorithm = Algorithm::kDirect});
  const auto rows =
      forecast(planner, Op::kAllReduce, Dtype::kFloat32, (64 << 20) + 4096, Which::kChosen);
  EXPECT_FALSE(rows[0].simulated);
  EXPECT_THAT(rows[0].refusal, Says("simulate.too_long"));
  EXPECT_THAT(forecast_rows(rows), Says("simulate.too_long"));
}

TEST(Forecast, is_a_table_and_json) {
  const Planner planner = planner_for(2, 1);
  auto rows = forecast(planner, Op::kAllReduce, Dtype::kFloat32, 64 << 10, Which::kChosen);
  EXPECT_THAT(forecast_heading(rows[0]), Says("simulate.heading", "all_reduce", "float32", 2));
  EXPECT_THAT(forecast_heading(rows[0]), testing::Not(Says("predict.columns")));
  rows[0].measured_s = rows[0].simulated->seconds / 2;
  EXPECT_THAT(forecast_heading(rows[0]), Says("predict.columns"));
  EXPECT_THAT(forecast_rows(rows), testing::HasSubstr("+100%"));
  const auto json = nlohmann::json::parse(to_json(rows, planner));
  EXPECT_EQ(json["rows"][0]["bytes"], 65536);
  EXPECT_DOUBLE_EQ(json["rows"][0]["simulated"].get<double>(), rows[0].simulated->seconds * 1e6);
  EXPECT_DOUBLE_EQ(json["rows"][0]["measured"].get<double>(), *rows[0].measured_s * 1e6);
  const auto barrier = forecast(planner, Op::kBarrier, Dtype::kFloat32, 0, Which::kChosen);
  EXPECT_EQ(barrier[0].bytes, 0u);
  EXPECT_THAT(forecast_rows(barrier), testing::HasSubstr("-"));
}

}  // namespace
}  // namespace paceline::bench
