#include "paceline/planning/schedules/named_schedules.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/schedule_checks.h"

namespace paceline::pipeline {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"gpipe", "1f1b", "interleaved-1f1b",
                                                    "zero-bubble"};

// The arguments of pipeline_schedule().
struct PipelineScheduleSize {
  int num_ranks = 1;
  int num_micro_batches = 1;
  int stages_per_rank = 1;
};

PipelineSchedule empty_schedule(std::string_view name, const PipelineScheduleSize& size) {
  check(size.num_micro_batches >= 1, "{}: {} micro-batches; at least one is needed", name,
        size.num_micro_batches);
  PipelineSchedule schedule{.name = std::string(name),
                            .num_micro_batches = size.num_micro_batches,
                            .rank_of_stage = looped_layout(size.num_ranks, size.stages_per_rank),
                            .ranks = {}};
  schedule.ranks.resize(static_cast<std::size_t>(size.num_ranks));
  return schedule;
}

// Returns a rank's actions of one kind, one after the other. The rank's stages take turns of
// `per_turn` micro-batches.
class Turns {
 public:
  Turns(const PipelineScheduleSize& size, int rank, int per_turn, Action::Kind kind)
      : size_(size), rank_(rank), per_turn_(per_turn), kind_(kind) {}

  Action next() {
    const int turn = step_ / per_turn_ % size_.stages_per_rank;
    const int round = step_ / (per_turn_ * size_.stages_per_rank);
    const int local = kind_ == Action::Kind::kForward ? turn : size_.stages_per_rank - 1 - turn;
    const int micro_batch = round * per_turn_ + step_ % per_turn_;
    ++step_;
    return {kind_, local * size_.num_ranks + rank_, micro_batch};
  }

 private:
  const PipelineScheduleSize size_;
  const int rank_;
  const int per_turn_;
  const Action::Kind kind_;
  int step_ = 0;
};

int round_size(std::string_view name, const PipelineScheduleSize& size) {
  const int rounds = std::max(1, size.num_micro_batches / size.num_ranks);
  check(size.num_micro_batches % rounds == 0,
        "{}: {} micro-batches on {} ranks do not make {} rounds of equal size; choose a multiple "
        "of {}",
        name, size.num_micro_batches, size.num_ranks, rounds, size.num_ranks);
  return size.num_micro_batches / rounds;
}

// The actions of rank `rank`: `warmup` forward passes, then forward and backward passes in turn,
// then the remaining backward passes. With `weight_delay` the backward passes make only input
// gradients, and the weight gradient of a backward pass follows the input gradient of the pass that
// is `weight_delay` passes later.
std::vector<Action> in_turns(const PipelineScheduleSize& size, int rank, int per_turn, int warmup,
                             std::optional<int> weight_delay) {
  const int total = size.num_micro_batches * size.stages_per_rank;
  const auto backward = weight_delay ? Action::Kind::kInputGradient : Action::Kind::kBackward;
  Turns forwards(size, rank, per_turn, Action::Kind::kForward);
  Turns backwards(size, rank, per_turn, backward);
  Turns weights(size, rank, per_turn, Action::Kind::kWeightGradient);
  warmup = std::min(warmup, total);
  std::vector<Action> actions;
  for (int i = 0; i < warmup; ++i) actions.push_back(forwards.next());
  for (int i = 0; i < total; ++i) {
    if (warmup + i < total) actions.push_back(forwards.next());
    actions.push_back(backwards.next());
    if (weight_delay && i >= *weight_delay) actions.push_back(weights.next());
  }
  for (int i = 0; weight_delay && i < std::min(*weight_delay, total); ++i)
    actions.push_back(weights.next());
  return actions;
}

PipelineSchedule gpipe(const PipelineScheduleSize& size) {
  PipelineSchedule schedule = empty_schedule("gpipe", size);
  const int total = size.num_micro_batches * size.stages_per_rank;
  for (int rank = 0; rank < size.num_ranks; ++rank) {
    schedule.ranks[static_cast<std::size_t>(rank)] =
        in_turns(size, rank, size.num_micro_batches, total, std::nullopt);
  }
  return schedule;
}

PipelineSchedule one_f_one_b(const PipelineScheduleSize& size) {
  PipelineSchedule schedule = empty_schedule("1f1b", size);
  check(size.stages_per_rank == 1,
        "1f1b: {} stages a rank; it supports one, interleaved-1f1b supports several",
        size.stages_per_rank);
  // Before its first backward pass a stage makes S - s forward passes, or all if there are fewer
  // (named_schedules.h). The warm-up makes one fewer, because in_turns() makes a forward pass
  // before each backward pass.
  for (int rank = 0; rank < size.num_ranks; ++rank) {
    schedule.ranks[static_cast<std::size_t>(rank)] =
        in_turns(size, rank, size.num_micro_batches, size.num_ranks - 1 - rank, std::nullopt);
  }
  return schedule;
}

PipelineSchedule interleaved_one_f_one_b(const PipelineScheduleSize& size) {
  PipelineSchedule schedule = empty_schedule("interleaved-1f1b", size);
  const int per_round = round_size(schedule.name, size);
  for (int rank = 0; rank < size.num_ranks; ++rank) {
    const int warmup = (size.stages_per_rank - 1) * per_round + 2 * (size.num_ranks - 1 - rank);
    schedule.ranks[static_cast<std::size_t>(rank)] =
        in_turns(size, rank, per_round, warmup, std::nullopt);
  }
  return schedule;
}

PipelineSchedule zero_bubble(const PipelineScheduleSize& size) {
  PipelineSchedule schedule = empty_schedule("zero-bubble", size);
  const int per_round =
      size.stages_per_rank == 1 ? size.num_micro_batches : round_size(schedule.name, size);
  for (int rank = 0; rank < size.num_ranks; ++rank) {
    const int warmup = (size.stages_per_rank - 1) * per_round + size.num_ranks - 1 - rank;
    schedule.ranks[static_cast<std::size_t>(rank)] = in_turns(size, rank, per_round, warmup, rank);
  }
  return schedule;
}

}  // namespace
}  // namespace paceline::pipeline

namespace paceline {

std::span<const std::string_view> pipeline_schedule_names() { return pipeline::kNames; }

PipelineSchedule pipeline_schedule(std::string_view name, int num_ranks, int num_micro_batches,
                                   int stages_per_rank) {
  const pipeline::PipelineScheduleSize size{num_ranks, num_micro_batches, stages_per_rank};
  constexpr std::array kMakers = {&pipeline::gpipe, &pipeline::one_f_one_b,
                                  &pipeline::interleaved_one_f_one_b, &pipeline::zero_bubble};
  const auto at =
      std::find(pipeline::kNames.begin(), pipeline::kNames.end(), name) - pipeline::kNames.begin();
  check(static_cast<std::size_t>(at) < pipeline::kNames.size(),
        "unknown schedule '{}'; choose one of {}", name, fmt::join(pipeline::kNames, ", "));
  return kMakers[static_cast<std::size_t>(at)](size);
}

}  // namespace paceline
