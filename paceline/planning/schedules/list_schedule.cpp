#include <algorithm>
#include <limits>
#include <tuple>

#include "paceline/planning/schedules/search.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

struct Candidate {
  Action action;
  double begin = kForever;
};

class ListScheduler {
 public:
  ListScheduler(const std::vector<int>& rank_of_stage, int num_micro_batches, const Costs& costs,
                const MemoryLimits& limits, const ListPolicy& policy)
      : ranks_(rank_of_stage),
        total_(num_micro_batches),
        costs_(costs),
        limits_(limits),
        policy_(policy),
        amounts_(rank_of_stage, num_micro_batches, costs) {
    num_ranks_ = *std::max_element(ranks_.begin(), ranks_.end()) + 1;
    schedule_ = {.name = "searched",
                 .num_micro_batches = num_micro_batches,
                 .rank_of_stage = rank_of_stage,
                 .ranks = std::vector<std::vector<Action>>(size(num_ranks_))};
    stages_.resize(ranks_.size());
    of_rank_.resize(size(num_ranks_));
    for (Stage& stage : stages_) {
      stage.forward_end.reserve(size(total_));
      stage.input_end.reserve(size(total_));
    }
    for (int stage = 0; stage < num_stages(); ++stage)
      of_rank_[size(ranks_[size(stage)])].stages.push_back(stage);
  }

  std::optional<PipelineSchedule> run() {
    const int apart = std::max(0, total_ - policy_.split_from);
    const std::size_t actions = ranks_.size() * size(2 * total_ + apart);
    for (int rank = 0; rank < num_ranks_; ++rank) next_.push_back(choose(rank));
    for (std::size_t i = 0; i < actions; ++i) {
      const auto first = std::min_element(
          next_.begin(), next_.end(),
          [](const Candidate& a, const Candidate& b) { return a.begin < b.begin; });
      if (first->begin == kForever) return std::nullopt;
      const Candidate best = *first;
      take(static_cast<int>(first - next_.begin()), best);
      // Chooses again for the ranks whose next action can be different now: the rank of this
      // action, and the ranks of the two neighbouring stages, which may wait for its result.
      for (int stage = best.action.stage - 1; stage <= best.action.stage + 1; ++stage) {
        if (stage < 0 || stage == num_stages()) continue;
        const int rank = ranks_[size(stage)];
        next_[size(rank)] = choose(rank);
      }
    }
    return schedule_;
  }

 private:
  struct Stage {
    std::vector<double> forward_end, input_end;
    int weights = 0;  // number of weight gradients scheduled so far
  };
  struct Rank {
    std::vector<int> stages;
    double free_at = 0;
    double bytes = 0;
    int in_flight = 0;
  };

  static std::size_t size(int value) { return static_cast<std::size_t>(value); }
  int num_stages() const { return static_cast<int>(ranks_.size()); }

  double arrival(double end, int from, int to) const {
    if (ranks_[size(from)] == ranks_[size(to)]) return end;
    return end + costs_.stages[size(std::min(from, to))].transfer_s;
  }

  bool may_begin_forward(int rank, const Action& action) const {
    const Rank& own = of_rank_[size(rank)];
    if (!limits_.bytes_of_rank.empty() &&
        own.bytes + amounts_.change_of_bytes(action) > limits_.bytes_of_rank[size(rank)])
      return false;
    if (!policy_.more_in_flight) return true;
    const int per_rank = static_cast<int>(own.stages.size());
    // The number in flight under 1F1B, or interleaved 1F1B if a rank has several stages.
    const int usual = per_rank == 1 ? num_ranks_ - rank
                                    : (per_rank - 1) * num_ranks_ + 2 * (num_ranks_ - 1 - rank) + 1;
    return own.in_flight < usual + *policy_.more_in_flight;
  }

  Candidate next_forward(int rank, int stage) const {
    const Stage& own = stages_[size(stage)];
    const auto next = own.forward_end.size();
    const Action action{Action::Kind::kForward, stage, static_cast<int>(next)};
    if (next == size(total_) || !may_begin_forward(rank, action)) return {action, kForever};
    double ready = 0;
    if (stage > 0) {
      const auto& before = stages_[size(stage - 1)].forward_end;
      if (before.size() <= next) return {action, kForever};
      ready = arrival(before[next], stage - 1, stage);
    }
    return {action, std::max(ready, of_rank_[size(rank)].free_at)};
  }

  Candidate next_backward(int rank, int stage) const {
    const Stage& own = stages_[size(stage)];
    const auto next = own.input_end.size();
    const int micro_batch = static_cast<int>(next);
    const bool is_apart = micro_batch >= policy_.split_from;
    const Action action{is_apart ? Action::Kind::kInputGradient : Action::Kind::kBackward, stage,
                        micro_batch};
    if (next == size(total_) || own.forward_end.size() <= next) return {action, kForever};
    double ready = 0;
    if (stage + 1 < num_stages()) {
      const auto& after = stages_[size(stage + 1)].input_end;
      if (after.size() <= next) return {action, kForever};
      ready = arrival(after[next], stage + 1, stage);
    }
    return {action, std::max(ready, of_rank_[size(rank)].free_at)};
  }

  Candidate next_weight(int rank, int stage) const {
    const Stage& own = stages_[size(stage)];
    const Action action{Action::Kind::kWeightGradient, stage, own.weights};
    const bool is_ready = size(own.weights) < own.input_end.size();
    return {action, is_ready ? of_rank_[size(rank)].free_at : kForever};
  }

  // The sort key of actions of one kind that could begin at the same time; the smallest goes first.
  std::tuple<int, int> precedence(const Action& action) const {
    const bool forward = action.kind == Action::Kind::kForward;
    const int deep = forward ? -action.stage : action.stage;
    switch (policy_.order) {
      case StageOrder::kDrainFirst:
        return {deep, 0};
      case StageOrder::kFillFirst:
        return {-deep, 0};
      case StageOrder::kByRound:
        break;
    }
    return {action.micro_batch / num_ranks_, -deep};
  }

  // The action that the rank could begin first; of several that could begin at the same time, the
  // one with the smallest precedence().
  template <class Next>
  Candidate first_of(int rank, const Next& next) const {
    Candidate best;
    for (const int stage : of_rank_[size(rank)].stages) {
      const Candidate candidate = next(rank, stage);
      if (candidate.begin == kForever) continue;
      if (std::tuple(candidate.begin, precedence(candidate.action)) <
          std::tuple(best.begin, precedence(best.action)))
        best = candidate;
    }
    return best;
  }

  Candidate choose(int rank) const {
    const Candidate forward =
        first_of(rank, [&](int r, int stage) { return next_forward(r, stage); });
    const Candidate backward =
        first_of(rank, [&](int r, int stage) { return next_backward(r, stage); });
    const Candidate weight =
        first_of(rank, [&](int r, int stage) { return next_weight(r, stage); });
    Candidate best = backward;
    if (forward.begin < backward.begin ||
        (policy_.forward_first && forward.begin <= backward.begin && forward.begin < kForever))
      best = forward;
    if (weight.begin < kForever) {
      const double slack = policy_.weight_slack * amounts_.duration(weight.action);
      const double end = weight.begin + amounts_.duration(weight.action);
      if (best.begin > weight.begin && end <= best.begin + slack) best = weight;
    }
    return best;
  }

  void take(int rank, const Candidate& candidate) {
    Rank& own = of_rank_[size(rank)];
    const Action& action = candidate.action;
    Stage& stage = stages_[size(action.stage)];
    own.free_at = candidate.begin + amounts_.duration(action);
    own.bytes += amounts_.change_of_bytes(action);
    schedule_.ranks[size(rank)].push_back(action);
    if (action.kind == Action::Kind::kForward) {
      stage.forward_end.push_back(own.free_at);
      ++own.in_flight;
    } else if (action.makes_input_gradient()) {
      stage.input_end.push_back(own.free_at);
      --own.in_flight;
    }
    if (action.makes_weight_gradient()) ++stage.weights;
  }

  const std::vector<int>& ranks_;  // the rank of each stage
  const int total_;                // micro-batches
  const Costs& costs_;
  const MemoryLimits& limits_;
  const ListPolicy& policy_;
  const ScheduleClock amounts_;  // only for its durations and changes of bytes
  int num_ranks_ = 0;
  PipelineSchedule schedule_;
  std::vector<Stage> stages_;
  std::vector<Rank> of_rank_;
  std::vector<Candidate> next_;  // the next action of each rank
};

}  // namespace

std::optional<PipelineSchedule> list_schedule(const std::vector<int>& rank_of_stage,
                                              int num_micro_batches, const Costs& costs,
                                              const MemoryLimits& limits,
                                              const ListPolicy& policy) {
  return ListScheduler(rank_of_stage, num_micro_batches, costs, limits, policy).run();
}

}  // namespace paceline::pipeline
