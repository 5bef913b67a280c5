// The planner's choices, and its predictions against the simulator's.

#include "paceline/engine/collectives/selection/planner.h"

#include <gtest/gtest.h>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/simulator.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {
namespace {

double simulated(const Candidate& candidate, const PlanRequest& request, const Planner& planner) {
  const SimulatedCluster cluster{planner.hosts(), planner.costs()};
  const auto world = static_cast<std::size_t>(planner.hosts().world_size());
  const std::vector<std::size_t> counts(world, request.count / world);
  Collective call;
  call.op = request.op;
  call.counts = counts;
  const BlockTable blocks =
      has_counts(call.op) ? BlockTable::of(call, planner.hosts().world_size()) : BlockTable();
  SimulationOptions options;
  options.element_bytes = size_of(request.dtype);
  options.partial_bytes = partial_size_of(request.dtype);
  return simulate(
             cluster,
             [&](int rank) {
               ScheduleSpec spec{
                   request.op,    rank,         planner.hosts().world_size(), 0, request.count,
                   request.count, request.count};
               spec.chunk = candidate.chunk;
               spec.hosts = &planner.hosts();
               spec.blocks = &blocks;
               return build(candidate.algorithm, spec);
             },
             options)
      .seconds;
}

Planner planner_for(int hosts, int ranks, const PlanningOptions& options = {}) {
  return Planner(Hosts::blocks(hosts, ranks), options, /*shares_memory=*/ranks > 1);
}

Algorithm choice(const Planner& planner, Op op, std::size_t bytes) {
  return planner.choose({op, Dtype::kFloat32, bytes / 4}).algorithm;
}

TEST(Planner, takes_few_rounds_for_little_and_few_bytes_for_much) {
  const Planner many = planner_for(16, 1);
  EXPECT_EQ(choice(many, Op::kAllReduce, 64), Algorithm::kDoubling);
  EXPECT_NE(choice(many, Op::kAllReduce, 64 << 20), Algorithm::kDoubling);
  EXPECT_EQ(choice(many, Op::kBroadcast, 64), Algorithm::kTree);
  EXPECT_EQ(choice(many, Op::kBroadcast, 64 << 20), Algorithm::kChain);
  EXPECT_EQ(choice(many, Op::kAllToAll, 16), Algorithm::kBruck);
  EXPECT_EQ(choice(many, Op::kAllToAll, 4 << 20), Algorithm::kDirect);
  EXPECT_EQ(choice(many, Op::kAllGather, 16), Algorithm::kDoubling);
}

TEST(Planner, sends_each_byte_once_for_a_host_when_the_ranks_share_memory) {
  const Planner planner = planner_for(2, 8);
  for (const Op op : {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kBroadcast}) {
    EXPECT_EQ(choice(planner, op, 1 << 20), Algorithm::kHierarchy) << name_of(op);
  }
  const Planner apart(Hosts::blocks(2, 8), {});
  for (const auto& candidate : apart.candidates({Op::kAllReduce, Dtype::kFloat32, 1000})) {
    EXPECT_NE(candidate.algorithm, Algorithm::kHierarchy);
  }
}

TEST(Planner, keeps_the_promised_order_unless_told_otherwise) {
  const auto has_ring = [](const Planner& planner, Op op) {
    for (const auto& candidate : planner.candidates({op, Dtype::kFloat32, 1 << 20})) {
      if (candidate.algorithm == Algorithm::kRing) return true;
    }
    return false;
  };
  EXPECT_FALSE(has_ring(planner_for(8, 1), Op::kAllReduce));
  EXPECT_TRUE(has_ring(planner_for(8, 1), Op::kAllGather));
  EXPECT_TRUE(has_ring(planner_for(8, 1, {.allows_any_order = true}), Op::kAllReduce));
  const Planner named = planner_for(8, 1, {.algorithm = Algorithm::kRing});
  EXPECT_EQ(choice(named, Op::kAllReduce, 64), Algorithm::kRing);
  // The ring does not support broadcast.
  EXPECT_NE(choice(named, Op::kBroadcast, 64), Algorithm::kRing);
}

TEST(Planner, explains_every_candidate) {
  const auto text = planner_for(2, 4).explain({Op::kAllReduce, Dtype::kFloat32, 1 << 20});
  EXPECT_NE(text.find("* "), std::string::npos);
  for (const char* word : {"direct", "one_shot", "doubling", "halving", "hierarchy", "8 ranks",
                           "2 hosts", "defaults"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
  EXPECT_EQ(text.find("ring"), std::string::npos);
}

// Includes numbers of ranks that are not a power of two, for which the last level of a tree is not
// full.
TEST(Planner, charges_no_network_on_one_host) {
  for (const int ranks : {2, 3, 4, 5, 7, 8, 17}) {
    const Planner planner(Hosts::blocks(1, ranks), {.allows_any_order = true});
    for (const Op op : {Op::kAllReduce, Op::kReduce, Op::kReduceScatter, Op::kBroadcast,
                        Op::kAllGather, Op::kGather, Op::kScatter, Op::kAllToAll}) {
      for (const Candidate& candidate : planner.candidates({op, Dtype::kFloat32, 16 << 10})) {
        EXPECT_EQ(candidate.work.network_bytes, 0)
            << ranks << " ranks " << name_of(op) << " " << name_of(candidate.algorithm);
      }
    }
  }
}

// The formulas ignore queueing and overlap, so each prediction must be within a factor of 4 of the
// simulated time, and the chosen algorithm must be at most twice as slow as the best one in the
// simulator.
TEST(Planner, predicts_what_the_simulator_does) {
  struct Shape {
    int hosts, ranks;
  };
  double worst_choice = 1;
  for (const Shape shape :
       {Shape{2, 1}, {4, 1}, {16, 1}, {2, 2}, {2, 8}, {8, 4}, {1, 3}, {1, 4}, {1, 5}, {5, 3}}) {
    const Planner planner = planner_for(shape.hosts, shape.ranks);
    for (const Op op : {Op::kAllReduce, Op::kBroadcast, Op::kReduce, Op::kAllGather,
                        Op::kReduceScatter, Op::kAllToAll, Op::kAllGatherV, Op::kReduceScatterV}) {
      for (const std::size_t bytes : {64u, 16u << 10, 1u << 20}) {
        // Blocks of unequal sizes are counted together.
        const int blocks = has_counts(op) ? shape.hosts * shape.ranks : 1;
        const PlanRequest request{op, Dtype::kFloat32,
                                  bytes / 4 * static_cast<std::size_t>(blocks)};
        const auto candidates = planner.candidates(request);
        double best = 1e30;
        for (const Candidate& candidate : candidates) {
          const double seconds = simulated(candidate, request, planner);
          best = std::min(best, seconds);
          EXPECT_LT(candidate.seconds, 4 * seconds)
              << shape.hosts << "x" << shape.ranks << " " << name_of(op) << " " << bytes << " "
              << name_of(candidate.algorithm);
          EXPECT_GT(candidate.seconds, seconds / 4)
              << shape.hosts << "x" << shape.ranks << " " << name_of(op) << " " << bytes << " "
              << name_of(candidate.algorithm);
        }
        const double chosen = simulated(candidates.front(), request, planner);
        worst_choice = std::max(worst_choice, chosen / best);
        EXPECT_LT(chosen, 2 * best)
            << shape.hosts << "x" << shape.ranks << " " << name_of(op) << " " << bytes << "\n"
            << planner.explain(request);
      }
    }
  }
  RecordProperty("worst_choice_over_best", std::to_string(worst_choice));
}

}  // namespace
}  // namespace paceline
