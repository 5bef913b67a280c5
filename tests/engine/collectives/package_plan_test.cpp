// Sums by package as plans, without a network: the promised bits, how much crosses between
// packages, what fits into a staging area, and when they are chosen.

#include "paceline/engine/collectives/planning/package_plan.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/algorithms/by_package.h"
#include "paceline/engine/collectives/algorithms/message_algorithms.h"

#include "tests/engine/collectives/schedule_data.h"

namespace paceline {
namespace {

using testing::HasSubstr;

constexpr Op kOps[] = {Op::kAllReduce, Op::kReduce, Op::kReduceScatter};

struct Layout {
  int packages, ranks;
};
constexpr Layout kLayouts[] = {{2, 2}, {2, 4}, {2, 8}, {3, 2}, {4, 2}, {5, 4}};

ScheduleSpec spec_for(const Hosts& packages, Op op, int rank, std::size_t count, int root = 0) {
  ScheduleSpec spec{op, rank, packages.world_size(), root, count, count, count};
  spec.hosts = &packages;
  return spec;
}

constexpr auto kBuilds = {build_by_package_in_place, build_by_package_staged};

ScheduleCase case_of(const Hosts& packages, Op op, Dtype dtype, std::size_t count, int root) {
  ScheduleCase test;
  test.call.op = op;
  test.call.dtype = dtype;
  test.call.reduce_op = ReduceOp::kMean;
  test.call.count = count;
  test.call.root = root;
  test.world = packages.world_size();
  test.hosts = packages;
  return test;
}

TEST(ByPackageSchedule, gives_every_rank_the_promised_bits) {
  for (const auto& [num_packages, ranks] : kLayouts) {
    const Hosts packages = Hosts::blocks(num_packages, ranks);
    const int root = packages.world_size() - 2;
    for (const Op op : kOps) {
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat64}) {
        for (const std::size_t count : {1, 63, 64, 65, 1500, 4096}) {
          for (const auto build : kBuilds) {
            SharedScheduleRun run(case_of(packages, op, dtype, count, root), build);
            ASSERT_NO_THROW(run.run());
            for (int rank = 0; rank < packages.world_size(); ++rank) {
              ASSERT_EQ(run.output(rank), run.expected(rank))
                  << name_of(op) << " of " << count << " " << name_of(dtype) << ", rank " << rank
                  << " of " << num_packages << " x " << ranks;
            }
          }
        }
      }
    }
  }
}

TEST(ByPackageSchedule, reads_as_much_between_packages_as_is_said) {
  const std::size_t count = 6400;
  for (const auto& [num_packages, ranks] : kLayouts) {
    const Hosts packages = Hosts::blocks(num_packages, ranks);
    for (const Op op : kOps) {
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
        for (const auto build : kBuilds) {
          SharedScheduleRun run(case_of(packages, op, dtype, count, 1), build);
          run.run();
          EXPECT_EQ(run.crossed(), bytes_between_packages(op, dtype, count, packages).by_package)
              << name_of(op) << " " << num_packages << " x " << ranks;
        }
      }
    }
  }
}

TEST(ByPackageSchedule, direct_moves_as_much_between_packages_as_is_said) {
  const std::size_t count = 64 * 20 * 8;  // equal chunks for all worlds here
  for (const auto& [num_packages, ranks] : kLayouts) {
    const Hosts packages = Hosts::blocks(num_packages, ranks);
    const auto package = [&](int rank) { return packages.host_of[static_cast<std::size_t>(rank)]; };
    for (const Op op : kOps) {
      std::uint64_t elements = 0;
      for (int rank = 0; rank < packages.world_size(); ++rank) {
        for (const Step& step : build_direct(spec_for(packages, op, rank, count, 1)).steps) {
          const bool is_sent =
              step.kind == Step::Kind::kSend && package(step.peer) != package(rank);
          if (is_sent) elements += step.count;
        }
      }
      const auto said = bytes_between_packages(op, Dtype::kFloat32, count, packages).direct;
      if (packages.world_size() == 6) continue;  // chunks of six are not equal
      EXPECT_EQ(4 * elements, said) << name_of(op) << " " << num_packages << " x " << ranks;
    }
  }
}

// What issue and documents claim: with two packages two buffers instead of n.
TEST(ByPackageSchedule, sends_each_buffer_once_in_each_direction) {
  const std::size_t count = 1 << 20;
  for (const int ranks : {2, 4, 8, 64}) {
    const auto bytes =
        bytes_between_packages(Op::kAllReduce, Dtype::kFloat32, count, Hosts::blocks(2, ranks));
    EXPECT_EQ(bytes.by_package, 2 * 4 * count);
    EXPECT_EQ(bytes.direct, static_cast<std::uint64_t>(2 * ranks) * 4 * count);
  }
}

TEST(ByPackageSchedule, pieces_fit_into_the_staging_area_and_fill_it) {
  constexpr std::size_t kRoom = 256 << 10;
  for (const auto& [num_packages, ranks] :
       {Layout{2, 2}, Layout{2, 64}, Layout{2, 256}, Layout{8, 16}, Layout{3, 4}}) {
    const Hosts packages = Hosts::blocks(num_packages, ranks);
    for (const Op op : kOps) {
      for (const Dtype dtype : {Dtype::kInt8, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64}) {
        for (const bool with_input : {false, true}) {
          const std::size_t most = by_package_piece_count(op, dtype, packages, kRoom, with_input);
          std::size_t used = 0;
          // Also a last piece, whose lanes are rounded up differently.
          for (const std::size_t count : {most, most - most / 3, most / 2 + 1, std::size_t{1}}) {
            const auto build = with_input ? build_by_package_staged : build_by_package_in_place;
            const Schedule schedule =
                build(spec_for(packages, op, packages.world_size() - 1, count));
            const Schedule first = build(spec_for(packages, op, 0, count));
            const std::size_t partials =
                std::max(schedule.partial_count, first.partial_count) * partial_size_of(dtype);
            const std::size_t end =
                partials_offset(op, dtype, packages, count, with_input) + partials;
            ASSERT_LE(end, kRoom) << name_of(op) << " of " << count << " " << name_of(dtype) << ", "
                                  << num_packages << " x " << ranks;
            used = std::max(used, end);
          }
          EXPECT_GT(used, kRoom * 9 / 10) << name_of(op) << " of " << most << " " << name_of(dtype)
                                          << num_packages << " x " << ranks;
        }
      }
    }
  }
}

TEST(PackagePlan, needs_equal_powers_of_two_of_neighbours_on_known_packages) {
  const auto is_possible = [](const std::vector<int>& packages) {
    const PackagePlan plan(packages);
    EXPECT_EQ(plan.chooses(Op::kAllReduce), plan.is_possible());
    EXPECT_FALSE(plan.chooses(Op::kBroadcast));
    return plan.is_possible();
  };
  EXPECT_TRUE(is_possible({0, 0, 1, 1}));
  EXPECT_TRUE(is_possible({1, 1, 0, 0}));
  EXPECT_TRUE(is_possible({3, 3, 9, 9, 4, 4}));
  EXPECT_TRUE(is_possible({0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_FALSE(is_possible({0, 0, 0, 0}));              // one package
  EXPECT_FALSE(is_possible({0, 1, 0, 1}));              // in turn
  EXPECT_FALSE(is_possible({0, 1}));                    // nothing to add up first
  EXPECT_FALSE(is_possible({0, 0, 0, 1, 1, 1}));        // no power of two
  EXPECT_FALSE(is_possible({0, 0, 0, 0, 1, 1}));        // not equal
  EXPECT_FALSE(is_possible({0, 0, 1, 1, 0, 0, 1, 1}));  // not whole
  EXPECT_FALSE(is_possible({0, 0, 1, PackagePlan::kUnknown}));
  EXPECT_FALSE(is_possible({PackagePlan::kUnknown, PackagePlan::kUnknown, PackagePlan::kUnknown,
                            PackagePlan::kUnknown}));
}

TEST(PackagePlan, says_why) {
  const auto text = [](const std::vector<int>& packages, Op op = Op::kAllReduce) {
    return PackagePlan(packages).explain({op, Dtype::kFloat32, 1 << 20});
  };
  const auto chosen = text({0, 0, 1, 1});
  EXPECT_THAT(chosen, HasSubstr("2 packages of 2 ranks: each adds up its own ranks first"));
  EXPECT_THAT(chosen, HasSubstr("8.4 MB that way, 16.8 MB directly"));
  EXPECT_THAT(chosen, HasSubstr("not measured"));
  EXPECT_THAT(text({0, 1, 0, 1}), HasSubstr("on 2 packages, but not"));
  EXPECT_THAT(text({0, 0, -1, 1}), HasSubstr("rank 2 may run on"));
  EXPECT_THAT(text({0, 0, 0, 0}), HasSubstr("on one package"));
  EXPECT_EQ(text({0, 0, 1, 1}, Op::kBroadcast), "");
}

}  // namespace
}  // namespace paceline
