// Runs all ranks' schedules without a network: one queue per pair of ranks.

#include "paceline/collectives/schedule.h"

#include <deque>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "paceline/collectives/algorithms/direct.h"

namespace paceline {
namespace {

using Values = std::vector<std::int64_t>;

// A contribution is tracked as a sum of distinct values, so a missing or doubled one shows.
std::int64_t value_of(int rank, std::size_t index) {
  return static_cast<std::int64_t>(index) * 1'000 + (std::int64_t{1} << rank);
}

struct Message {
  Step step;
  Values values;
};

class Simulation {
 public:
  Simulation(Op op, int world, int root, std::size_t count, bool one_shot)
      : op_(op), world_(world), root_(root), count_(count) {
    for (int rank = 0; rank < world; ++rank) {
      const ScheduleSpec spec{op, rank, world, root, count, count, count};
      schedules_.push_back(one_shot ? build_one_shot_all_reduce(spec) : build_direct(spec));
      Collective call{op, {}, {}, root, count, nullptr, nullptr};
      inputs_.emplace_back(input_count(call, rank, world));
      for (std::size_t i = 0; i < inputs_.back().size(); ++i) inputs_.back()[i] = value_of(rank, i);
      outputs_.emplace_back(output_count(call, rank, world), -1);
      slots_.emplace_back(static_cast<std::size_t>(world), Values());
    }
  }

  void run() {
    std::vector<std::size_t> next(schedules_.size(), 0);
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < world_; ++rank) {
        auto& at = next[static_cast<std::size_t>(rank)];
        const auto& steps = schedules_[static_cast<std::size_t>(rank)].steps;
        while (at < steps.size() && step(rank, steps[at])) {
          ++at;
          moved = true;
        }
      }
    }
    for (int rank = 0; rank < world_; ++rank) {
      ASSERT_EQ(next[static_cast<std::size_t>(rank)],
                schedules_[static_cast<std::size_t>(rank)].steps.size())
          << "rank " << rank << " is stuck";
    }
    for (const auto& [pair, queue] : network_)
      EXPECT_TRUE(queue.empty()) << "a message was not received";
  }

  const Values& output(int rank) const { return outputs_[static_cast<std::size_t>(rank)]; }

 private:
  bool step(int rank, const Step& step) {
    const auto self = static_cast<std::size_t>(rank);
    switch (step.kind) {
      case Step::Kind::kSend:
        network_[{rank, step.peer}].push_back({step, read(self, step.from, step.count)});
        return true;
      case Step::Kind::kReceive: {
        auto& queue = network_[{step.peer, rank}];
        if (queue.empty()) return false;
        const Message message = queue.front();
        queue.pop_front();
        EXPECT_EQ(message.step.from, step.from);
        EXPECT_EQ(message.step.to, step.to);
        EXPECT_EQ(message.step.count, step.count);
        EXPECT_EQ(message.step.round, step.round);
        write(self, step.to, message.values);
        return true;
      }
      case Step::Kind::kReduce: {
        Values sum = read(self, step.from, step.count);
        for (int other = 0; other < world_; ++other) {
          if (other == rank) continue;
          auto& slot = slots_[self][static_cast<std::size_t>(other)];
          EXPECT_EQ(slot.size(), step.count)
              << "rank " << rank << " reduces before rank " << other << " has come";
          for (std::size_t i = 0; i < slot.size(); ++i) sum[i] += slot[i];
          slot.clear();
        }
        write(self, step.to, sum);
        return true;
      }
      case Step::Kind::kCopy:
        write(self, step.to, read(self, step.from, step.count));
        return true;
    }
    return false;
  }

  Values read(std::size_t rank, const Place& place, std::size_t count) {
    if (place.space == Space::kSlot) return slots_[rank][place.offset];
    const Values& from = place.space == Space::kInput ? inputs_[rank] : outputs_[rank];
    EXPECT_LE(place.offset + count, from.size());
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(place.offset);
    return Values(begin, begin + static_cast<std::ptrdiff_t>(count));
  }

  void write(std::size_t rank, const Place& place, const Values& values) {
    if (place.space == Space::kSlot) {
      EXPECT_LE(values.size(), schedules_[rank].slot_count);
      slots_[rank][place.offset] = values;
      return;
    }
    ASSERT_LE(place.offset + values.size(), outputs_[rank].size());
    std::copy(values.begin(), values.end(),
              outputs_[rank].begin() + static_cast<std::ptrdiff_t>(place.offset));
  }

  Op op_;
  int world_, root_;
  std::size_t count_;
  std::vector<Schedule> schedules_;
  std::vector<Values> inputs_, outputs_;
  std::vector<std::vector<Values>> slots_;
  std::map<std::pair<int, int>, std::deque<Message>> network_;
};

Values expected(Op op, int rank, int world, int root, std::size_t count) {
  Values values;
  const auto total = [&](std::size_t index) {
    std::int64_t sum = 0;
    for (int other = 0; other < world; ++other) sum += value_of(other, index);
    return sum;
  };
  const auto base = static_cast<std::size_t>(rank) * count;
  switch (op) {
    case Op::kReduce:
      if (rank != root) return {};
      [[fallthrough]];
    case Op::kAllReduce:
      for (std::size_t i = 0; i < count; ++i) values.push_back(total(i));
      return values;
    case Op::kReduceScatter:
      for (std::size_t i = 0; i < count; ++i) values.push_back(total(base + i));
      return values;
    case Op::kBroadcast:
      for (std::size_t i = 0; i < count; ++i) values.push_back(value_of(root, i));
      return values;
    case Op::kScatter:
      for (std::size_t i = 0; i < count; ++i) values.push_back(value_of(root, base + i));
      return values;
    case Op::kGather:
      if (rank != root) return {};
      [[fallthrough]];
    case Op::kAllGather:
      for (int other = 0; other < world; ++other) {
        for (std::size_t i = 0; i < count; ++i) values.push_back(value_of(other, i));
      }
      return values;
    case Op::kAllToAll:
      for (int other = 0; other < world; ++other) {
        for (std::size_t i = 0; i < count; ++i) values.push_back(value_of(other, base + i));
      }
      return values;
    default:
      return values;
  }
}

class ScheduleTest : public testing::TestWithParam<Op> {};

TEST_P(ScheduleTest, gives_every_rank_its_result_for_world_sizes_1_to_17) {
  const Op op = GetParam();
  for (int world = 1; world <= 17; ++world) {
    for (const std::size_t count : {0, 1, 2, 63, 64, 65, 127, 128, 1000, 1088, 1089}) {
      for (const int root : {0, world / 2, world - 1}) {
        Simulation simulation(op, world, root, count, false);
        simulation.run();
        for (int rank = 0; rank < world; ++rank) {
          ASSERT_EQ(simulation.output(rank), expected(op, rank, world, root, count))
              << name_of(op) << " world " << world << " rank " << rank << " count " << count
              << " root " << root;
        }
        if (!has_root(op)) break;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Direct, ScheduleTest,
                         testing::Values(Op::kAllReduce, Op::kBroadcast, Op::kReduce,
                                         Op::kAllGather, Op::kGather, Op::kScatter,
                                         Op::kReduceScatter, Op::kAllToAll, Op::kBarrier),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(OneShotSchedule, gives_every_rank_the_sum) {
  for (int world = 1; world <= 17; ++world) {
    for (const std::size_t count : {0, 1, 64, 100}) {
      Simulation simulation(Op::kAllReduce, world, 0, count, true);
      simulation.run();
      for (int rank = 0; rank < world; ++rank) {
        ASSERT_EQ(simulation.output(rank), expected(Op::kAllReduce, rank, world, 0, count));
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

}  // namespace
}  // namespace paceline
