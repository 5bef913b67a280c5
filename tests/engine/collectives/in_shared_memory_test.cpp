// The direct schedules of ranks that map each other's memory, in place and staged, for world sizes
// 1 to 9, without any shared memory: they follow the rules of in_shared_memory.h, and the results
// are bitwise as promised.

#include "paceline/engine/collectives/algorithms/in_shared_memory.h"

#include <gtest/gtest.h>

#include "paceline/engine/collectives/op_traits.h"

#include "tests/engine/collectives/schedule_data.h"

namespace paceline {
namespace {

struct Way {
  const char* name;
  Schedule (*build)(const ScheduleSpec& spec);
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

constexpr Way kInPlace{"in_place", build_in_place};
constexpr Way kStaged{"staged", build_staged};
constexpr Way kOneShot{"one_shot", build_staged_one_shot};

// Unequal counts, some zero.
std::vector<std::size_t> unequal_counts(Op op, int world, std::size_t scale) {
  const auto size = static_cast<std::size_t>(world);
  std::vector<std::size_t> counts(op == Op::kAllToAllV ? size * size : size);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = (i * 7 + 3) % 5 * scale;
  return counts;
}

int expect_right(const Way& way, const ScheduleCase& test) {
  SCOPED_TRACE(fmt::format("{} {} {}, world {}, count {}, root {}", way.name, name_of(test.call.op),
                           name_of(test.call.dtype), test.world, test.call.count, test.call.root));
  SharedScheduleRun run(test, [&](ScheduleSpec spec) {
    // Blocks of a staging area have room for the longest block.
    if (has_counts(spec.op)) spec.count = test.chunk;
    if (spec.op == Op::kBroadcast) spec.chunk = spec.count / 3;
    return way.build(spec);
  });
  int meetings = -1;
  EXPECT_NO_THROW(meetings = run.run());
  for (int rank = 0; rank < test.world; ++rank) {
    EXPECT_EQ(run.output(rank), run.expected(rank)) << "rank " << rank;
  }
  return meetings;
}

class InSharedMemoryTest : public testing::TestWithParam<std::tuple<Way, Op>> {};

TEST_P(InSharedMemoryTest, gives_every_rank_the_promised_bits) {
  const auto& [way, op] = GetParam();
  const std::vector<Dtype> dtypes =
      reduces(op) ? std::vector{Dtype::kFloat32, Dtype::kBfloat16} : std::vector{Dtype::kInt32};
  const int wanted_meetings = way.build == build_in_place                         ? 0
                              : op == Op::kReduce                                 ? 2
                              : op == Op::kAllReduce && way.build == build_staged ? 2
                                                                                  : 1;
  for (int world = 1; world <= 9; ++world) {
    for (const std::size_t count : {0, 1, 64, 65, 1089}) {
      ScheduleCase test{.call = {}, .world = world};
      std::vector<std::size_t> counts;
      test.call.op = op;
      test.call.count = op == Op::kBarrier ? 0 : count;
      if (has_counts(op)) {
        counts = unequal_counts(op, world, count);
        test.call.counts = counts;
        test.call.count = 0;
        for (const auto part : counts) test.call.count += part;
        test.chunk = *std::max_element(counts.begin(), counts.end());
      }
      for (const int root : {0, world - 1}) {
        test.call.root = root;
        for (const Dtype dtype : dtypes) {
          test.call.dtype = dtype;
          ASSERT_EQ(expect_right(way, test), wanted_meetings);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Direct, InSharedMemoryTest,
    testing::Combine(testing::Values(kInPlace, kStaged),
                     testing::Values(Op::kAllReduce, Op::kBroadcast, Op::kReduce, Op::kAllGather,
                                     Op::kGather, Op::kScatter, Op::kReduceScatter, Op::kAllToAll,
                                     Op::kBarrier, Op::kAllGatherV, Op::kReduceScatterV,
                                     Op::kAllToAllV)),
    [](const auto& info) {
      return fmt::format("{}_{}", std::get<0>(info.param).name, name_of(std::get<1>(info.param)));
    });
INSTANTIATE_TEST_SUITE_P(OneShot, InSharedMemoryTest,
                         testing::Values(std::tuple(kOneShot, Op::kAllReduce)),
                         [](const auto& /*info*/) { return std::string("all_reduce"); });

// Input and output are one buffer of the caller, which every rank maps in an in-place call.
TEST(InSharedMemory, may_work_in_the_output) {
  for (const Way& way : {kInPlace, kStaged}) {
    for (const Op op : {Op::kAllReduce, Op::kBroadcast, Op::kReduce, Op::kAllGather}) {
      for (int world = 1; world <= 5; ++world) {
        ScheduleCase test{.call = {}, .world = world, .in_place = true};
        test.call.op = op;
        test.call.count = 300;
        test.call.dtype = Dtype::kFloat32;
        test.call.root = world / 2;
        expect_right(way, test);
      }
    }
  }
}

// Proves that the check in the runs above can fail.
TEST(InSharedMemory, a_rank_that_writes_what_another_reads_is_noticed) {
  ScheduleCase test{.call = {}, .world = 2};
  test.call.op = Op::kAllGather;
  test.call.count = 8;
  SharedScheduleRun run(test, [](const ScheduleSpec& spec) {
    Schedule schedule = build_staged(spec);
    std::erase_if(schedule.steps, [](const Step& step) { return step.kind == Step::Kind::kMeet; });
    return schedule;
  });
  EXPECT_THROW(run.run(), Error);
}

}  // namespace
}  // namespace paceline
