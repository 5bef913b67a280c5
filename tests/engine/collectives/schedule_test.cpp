// Every algorithm's schedules, for world sizes 1 to 17, without a network: they follow the rules of
// schedule.h, and the results are bitwise as promised.

#include <map>

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/op_traits.h"

#include "tests/engine/collectives/schedule_data.h"

namespace paceline {
namespace {

const std::vector<std::size_t> kCounts = {0, 1, 2, 63, 64, 65, 130, 1089};

// Operations whose input and output may be one buffer of the caller.
bool may_be_in_place(Op op) {
  return op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kReduce ||
         op == Op::kAllGather || op == Op::kAllGatherV;
}

std::string describe(const ScheduleCase& test) {
  return std::string(name_of(test.algorithm)) + " " + std::string(name_of(test.call.op)) + " " +
         std::string(name_of(test.call.dtype)) + ", world " + std::to_string(test.world) +
         ", count " + std::to_string(test.call.count) + ", root " + std::to_string(test.call.root) +
         (test.in_place ? ", in place" : "");
}

void expect_right(const ScheduleCase& test) {
  SCOPED_TRACE(describe(test));
  ScheduleRun run(test);
  ASSERT_NO_THROW(run.run());
  for (int rank = 0; rank < test.world; ++rank) {
    ASSERT_EQ(run.output(rank), run.expected(rank)) << "rank " << rank;
    ASSERT_TRUE(test.world == 1 || run.begins_with_next(rank)) << "rank " << rank;
  }
  ASSERT_TRUE(run.everybody_heard_of_all());
}

struct ScheduleSetting {
  Algorithm algorithm;
  Op op;
};

std::vector<ScheduleSetting> all_settings() {
  std::vector<ScheduleSetting> settings;
  for (const Algorithm algorithm : kAllAlgorithms) {
    for (const Op op : {Op::kAllReduce, Op::kBroadcast, Op::kReduce, Op::kAllGather, Op::kGather,
                        Op::kScatter, Op::kReduceScatter, Op::kAllToAll, Op::kBarrier,
                        Op::kAllGatherV, Op::kReduceScatterV, Op::kAllToAllV}) {
      if (serves(algorithm, op) && keeps_order(algorithm, op)) settings.push_back({algorithm, op});
    }
  }
  return settings;
}

// Unequal counts, some zero.
std::vector<std::size_t> counts_for(Op op, int world, std::size_t scale) {
  const auto size = static_cast<std::size_t>(world);
  std::vector<std::size_t> counts(op == Op::kAllToAllV ? size * size : size);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = (i * 7 + 3) % 5 * scale;
  return counts;
}

class ScheduleTest : public testing::TestWithParam<ScheduleSetting> {};

TEST_P(ScheduleTest, gives_every_rank_the_promised_bits) {
  const auto [algorithm, op] = GetParam();
  const std::vector<Dtype> dtypes =
      reduces(op) ? std::vector{Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16, Dtype::kInt64}
                  : std::vector{Dtype::kInt32};
  for (int world = 1; world <= 17; ++world) {
    for (const std::size_t count : kCounts) {
      ScheduleCase test{algorithm, {}, world, false, {}, 100};
      std::vector<std::size_t> counts;
      test.call.op = op;
      test.call.count = count;
      if (has_counts(op)) {
        counts = counts_for(op, world, count);
        test.call.counts = counts;
        test.call.count = 0;
        for (const auto part : counts) test.call.count += part;
      }
      for (const int root : {0, world / 2, world - 1}) {
        test.call.root = root;
        for (const Dtype dtype : dtypes) {
          test.call.dtype = dtype;
          for (const bool in_place : {false, true}) {
            if (in_place && !may_be_in_place(op)) continue;
            test.in_place = in_place;
            expect_right(test);
            if (HasFatalFailure()) return;
          }
        }
        if (!has_root(op)) break;
      }
    }
  }
}

TEST_P(ScheduleTest, divides_a_mean_once_by_all_ranks) {
  const auto [algorithm, op] = GetParam();
  if (!reduces(op)) return;
  for (const int world : {1, 2, 3, 5, 8, 13}) {
    ScheduleCase test{algorithm, {}, world, false, {}, 100};
    const auto counts = counts_for(op, world, 10);
    test.call.op = op;
    test.call.reduce_op = ReduceOp::kMean;
    test.call.dtype = Dtype::kBfloat16;
    test.call.count = 200;
    if (has_counts(op)) {
      test.call.counts = counts;
      test.call.count = 0;
      for (const auto part : counts) test.call.count += part;
    }
    expect_right(test);
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, ScheduleTest, testing::ValuesIn(all_settings()),
                         [](const auto& info) {
                           return std::string(name_of(info.param.algorithm)) + "_" +
                                  std::string(name_of(info.param.op));
                         });

// The ring adds in its own order, which is the same on all ranks.
TEST(RingSchedule, sums_everything_once_and_alike_on_all_ranks) {
  for (const Op op : {Op::kAllReduce, Op::kReduceScatter, Op::kReduceScatterV}) {
    for (int world = 1; world <= 17; ++world) {
      for (const std::size_t count : kCounts) {
        ScheduleCase test{Algorithm::kRing, {}, world, false, {}, 100};
        const auto counts = counts_for(op, world, count);
        test.call.op = op;
        test.call.count = count;
        if (has_counts(op)) {
          test.call.counts = counts;
          test.call.count = 0;
          for (const auto part : counts) test.call.count += part;
        }
        test.call.dtype = Dtype::kInt64;  // sums are exact in any order
        expect_right(test);
        if (op != Op::kAllReduce) continue;
        test.call.dtype = Dtype::kBfloat16;
        test.in_place = true;
        ScheduleRun run(test);
        run.run();
        for (int rank = 1; rank < world; ++rank) ASSERT_EQ(run.output(rank), run.output(0));
      }
    }
  }
}

// The steps that run ahead must belong to the same piece at both ends; otherwise messages of a pair
// of ranks would be exchanged.
TEST(OverlappingPieces, begin_with_sends_and_receives_that_match) {
  for (const Op op : {Op::kAllReduce, Op::kReduce, Op::kReduceScatter}) {
    for (int world = 2; world <= 9; ++world) {
      for (const std::size_t count : {1, 70, 1000}) {
        std::map<std::pair<int, int>, int> open;  // sends minus receives, for each pair of ranks
        for (int rank = 0; rank < world; ++rank) {
          const auto schedule =
              build(Algorithm::kDirect, {op, rank, world, 1, count, count, count});
          ASSERT_TRUE(schedule.overlaps);
          for (std::size_t i = 0; i < schedule.num_ahead; ++i) {
            const Step& step = schedule.steps[i];
            ASSERT_TRUE(step.kind == Step::Kind::kSend || step.kind == Step::Kind::kReceive);
            if (step.kind == Step::Kind::kSend) {
              ++open[{rank, step.peer}];
            } else {
              --open[{step.peer, rank}];
            }
          }
        }
        for (const auto& [ends, number] : open) {
          EXPECT_EQ(number, 0) << name_of(op) << " of " << count << ", rank " << ends.first
                               << " to " << ends.second << " of " << world;
        }
      }
    }
  }
}

TEST(Chunk, covers_the_buffer_once_in_rank_order) {
  for (int world = 1; world <= 17; ++world) {
    for (const std::size_t count : {0, 1, 63, 64, 65, 4096, 100'003}) {
      std::size_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Chunk chunk = chunk_of(count, rank, world);
        EXPECT_EQ(chunk.begin, next);
        next = chunk.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(BlockPieces, cover_every_block_once) {
  Collective call;
  call.op = Op::kReduceScatterV;
  const std::vector<std::size_t> counts = {5, 0, 12};
  call.counts = counts;
  const auto table = BlockTable::of(call, 3);
  std::size_t covered = 0;
  for (std::size_t begin = 0; begin < 12; begin += 4) {
    const auto piece = table.piece(begin, 4);
    for (std::size_t i = 0; i < 3; ++i) {
      covered += piece.given[i].count;
      EXPECT_EQ(piece.given[i].offset, table.given[i].offset + begin);
    }
  }
  EXPECT_EQ(covered, 17u);
}

}  // namespace
}  // namespace paceline
