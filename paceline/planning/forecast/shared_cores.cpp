#include "paceline/planning/forecast/shared_cores.h"

#include <algorithm>
#include <limits>

#include "paceline/planning/schedules/plan_clock.h"

namespace paceline::planning {
namespace {

using pipeline::Action;
using pipeline::ActionKind;

constexpr double kNever = std::numeric_limits<double>::infinity();

// Virtual time in which ranks begin, share their host's cores, and end.
class SharedRun {
 public:
  SharedRun(const pipeline::Plan& plan, const pipeline::Costs& costs,
            const std::vector<int>& host_of_rank, double cores)
      : plan_(plan),
        costs_(costs),
        clock_(plan.rank_of_stage, plan.num_micro_batches, costs),
        host_of_rank_(host_of_rank),
        cores_(cores),
        ranks_(plan.ranks.size()),
        active_(
            static_cast<std::size_t>(*std::max_element(host_of_rank.begin(), host_of_rank.end())) +
            1) {
    const std::size_t places =
        plan.rank_of_stage.size() * static_cast<std::size_t>(plan.num_micro_batches);
    forward_end_.resize(places, kNever);
    input_end_.resize(places, kNever);
  }

  double run() {
    double now = 0;
    while (true) {
      begin_what_is_ready(now);
      const double next = next_event(now);
      if (next == kNever) return now;
      advance(now, next);
      now = next;
    }
  }

 private:
  struct Rank {
    std::size_t position = 0;
    double left_s = 0;  // of the action under way, at full speed
    bool computes = false;
  };

  std::size_t place(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(plan_.num_micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }

  double arrival(double end, int from, int to) const {
    const auto rank_of = [&](int stage) {
      return plan_.rank_of_stage[static_cast<std::size_t>(stage)];
    };
    if (rank_of(from) == rank_of(to)) return end;
    return end + costs_.stages[static_cast<std::size_t>(std::min(from, to))].transfer_s;
  }

  double ready_at(const Action& action) const {
    const auto& [kind, stage, micro_batch] = action;
    const std::size_t here = place(stage, micro_batch);
    if (kind == ActionKind::kForward)
      return stage == 0 ? 0
                        : arrival(forward_end_[place(stage - 1, micro_batch)], stage - 1, stage);
    if (kind == ActionKind::kWeightGradient) return input_end_[here];
    if (stage + 1 == plan_.num_stages()) return forward_end_[here];
    return std::max(forward_end_[here],
                    arrival(input_end_[place(stage + 1, micro_batch)], stage + 1, stage));
  }

  const Action* next_of(std::size_t rank) const {
    const auto& actions = plan_.ranks[rank];
    const std::size_t position = ranks_[rank].position;
    return position < actions.size() ? &actions[position] : nullptr;
  }

  int& active_beside(std::size_t rank) {
    return active_[static_cast<std::size_t>(host_of_rank_[rank])];
  }

  void begin_what_is_ready(double now) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Action* const action = next_of(rank);
      if (ranks_[rank].computes || action == nullptr || ready_at(*action) > now) continue;
      ranks_[rank].computes = true;
      ranks_[rank].left_s = clock_.duration(*action);
      ++active_beside(rank);
    }
  }

  double speed_of(std::size_t rank) {
    return std::min(1.0, cores_ / static_cast<double>(active_beside(rank)));
  }

  double next_event(double now) {
    double next = kNever;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].computes) {
        next = std::min(next, now + ranks_[rank].left_s / speed_of(rank));
      } else if (const Action* const action = next_of(rank)) {
        next = std::min(next, ready_at(*action));
      }
    }
    return next;
  }

  void advance(double now, double next) {
    constexpr double kRounding = 1e-12;
    std::vector<std::size_t> ended;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank].computes) continue;
      ranks_[rank].left_s -= (next - now) * speed_of(rank);
      if (ranks_[rank].left_s <= kRounding * (1 + next)) ended.push_back(rank);
    }
    for (const std::size_t rank : ended) {
      const Action& action = *next_of(rank);
      if (action.kind == ActionKind::kForward)
        forward_end_[place(action.stage, action.micro_batch)] = next;
      if (action.makes_input_gradient()) input_end_[place(action.stage, action.micro_batch)] = next;
      ranks_[rank].computes = false;
      ++ranks_[rank].position;
      --active_beside(rank);
    }
  }

  const pipeline::Plan& plan_;
  const pipeline::Costs& costs_;
  const pipeline::PlanClock clock_;  // for durations
  const std::vector<int>& host_of_rank_;
  const double cores_;
  std::vector<Rank> ranks_;
  std::vector<int> active_;                      // [host] ranks that compute
  std::vector<double> forward_end_, input_end_;  // by place()
};

}  // namespace

double seconds_on_shared_cores(const pipeline::Plan& plan, const pipeline::Costs& costs,
                               const std::vector<int>& host_of_rank, double cores) {
  return SharedRun(plan, costs, host_of_rank, cores).run();
}

}  // namespace paceline::planning
