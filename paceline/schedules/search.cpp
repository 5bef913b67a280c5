#include "paceline/schedules/search.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include "paceline/core/check.h"
#include "paceline/schedules/named_plans.h"
#include "paceline/schedules/plan_clock.h"

namespace paceline::pipeline {
namespace {

constexpr std::size_t kStarts = 3;  // plans that are improved

struct Timed {
  Plan plan;
  double seconds = 0;
  double bytes = 0;  // of all ranks: of two plans as fast the smaller one is better

  bool is_better_than(const Timed& other) const {
    return std::pair(seconds, bytes) < std::pair(other.seconds, other.bytes);
  }
};

class Search {
 public:
  Search(const std::vector<int>& rank_of_stage, int num_micro_batches, const Costs& costs,
         const SearchOptions& options)
      : layout_(rank_of_stage),
        num_micro_batches_(num_micro_batches),
        costs_(costs),
        options_(options),
        num_ranks_(*std::max_element(layout_.begin(), layout_.end()) + 1),
        clock_(layout_, num_micro_batches, costs) {}

  SearchResult run() {
    try_named_plans();
    try_list_schedules();
    if (found_.empty()) fail_of_memory();
    const auto better = [](const Timed& a, const Timed& b) { return a.is_better_than(b); };
    std::stable_sort(found_.begin(), found_.end(), better);
    found_.resize(std::min(found_.size(), kStarts));
    for (Timed& start : found_) improve(start);
    Timed& best = *std::min_element(found_.begin(), found_.end(), better);
    return {best.plan, simulate(best.plan, costs_), lower_bound(), std::move(named_)};
  }

 private:
  bool fits() const {
    const auto& limits = options_.limits.bytes_of_rank;
    for (std::size_t rank = 0; rank < limits.size(); ++rank) {
      if (clock_.peak_bytes()[rank] > limits[rank]) return false;
    }
    return true;
  }

  double peak_of_all() const {
    double sum = 0;
    for (const double peak : clock_.peak_bytes()) sum += peak;
    return sum;
  }

  void try_named_plans() {
    const int per_rank = static_cast<int>(layout_.size()) / num_ranks_;
    if (layout_ != looped_layout(num_ranks_, std::max(per_rank, 1))) return;
    for (const std::string_view name : plan_names()) {
      if (name == "zero-bubble" && !options_.may_split_backward) continue;
      try {
        add_named(make_plan(name, {num_ranks_, num_micro_batches_, per_rank}));
      } catch (const Error&) {
        // This schedule does not exist for these numbers.
      }
    }
  }

  void add_named(Plan plan) {
    clock_.run(plan.ranks);
    const double most = *std::max_element(clock_.peak_bytes().begin(), clock_.peak_bytes().end());
    named_.push_back({plan.name, clock_.seconds(), most, fits()});
    if (fits()) found_.push_back({std::move(plan), clock_.seconds(), peak_of_all()});
  }

  void try_list_schedules() {
    std::vector<std::optional<int>> allowances = {std::nullopt};
    for (const int more : {0, 1, 2, num_ranks_ / 2, num_ranks_ - 1, 2 * num_ranks_}) {
      if (std::find(allowances.begin(), allowances.end(), more) == allowances.end())
        allowances.emplace_back(more);
    }
    for (const bool splits : {true, false}) {
      if (splits && !options_.may_split_backward) continue;
      for (const auto& more : allowances) {
        for (const bool forward_first : {false, true}) try_orders(splits, more, forward_first);
      }
    }
  }

  void try_orders(bool splits, std::optional<int> more, bool forward_first) {
    for (const double slack : {0.0, 0.5, 1.0}) {
      if (slack > 0 && !splits) continue;
      for (const auto order :
           {StageOrder::kDeepFirst, StageOrder::kBroadFirst, StageOrder::kByRound}) {
        const bool one_stage = static_cast<int>(layout_.size()) == num_ranks_;
        if (one_stage && order != StageOrder::kDeepFirst) continue;
        auto plan = list_schedule(layout_, num_micro_batches_, costs_, options_.limits,
                                  {splits, more, slack, forward_first, order});
        if (!plan || !clock_.run(plan->ranks) || !fits()) continue;
        found_.push_back({std::move(*plan), clock_.seconds(), peak_of_all()});
      }
    }
  }

  // Moves one action at a time, past at most kMostPlaces others of its rank.
  void improve(Timed& best) {
    constexpr std::uint64_t kMostPlaces = 8;
    std::mt19937_64 random(options_.seed);
    const auto below = [&](std::size_t bound) {
      return static_cast<std::size_t>(random() % bound);
    };
    for (int trial = 0; trial < options_.num_trials && best.seconds > lower_bound(); ++trial) {
      auto& actions = best.plan.ranks[below(best.plan.ranks.size())];
      if (actions.size() < 2) continue;
      const std::size_t from = below(actions.size());
      const std::size_t places = 1 + below(kMostPlaces);
      const bool later = random() % 2 == 0;
      if (later ? from + places >= actions.size() : from < places) continue;
      const std::size_t to = later ? from + places : from - places;
      if (!keeps_order(actions, from, to)) continue;
      move(actions, from, to);
      const bool ended = clock_.run(best.plan.ranks) && fits();
      if (!ended || clock_.seconds() > best.seconds) {
        move(actions, to, from);
        continue;
      }
      if (clock_.seconds() < best.seconds) best.plan.name = "searched";
      best.seconds = clock_.seconds();
      best.bytes = peak_of_all();
    }
    if (best.plan.name != "searched") restore_named(best);
  }

  // Changes that made nothing faster are not worth a name of their own.
  void restore_named(Timed& best) const {
    best.plan = make_plan(best.plan.name, {num_ranks_, num_micro_batches_,
                                           static_cast<int>(layout_.size()) / num_ranks_});
  }

  // A stage has its micro-batches in order.
  static bool keeps_order(const std::vector<Action>& actions, std::size_t from, std::size_t to) {
    const Action& moved = actions[from];
    for (std::size_t i = std::min(from, to); i <= std::max(from, to); ++i) {
      if (i != from && actions[i].stage == moved.stage && actions[i].kind == moved.kind)
        return false;
    }
    return true;
  }

  static void move(std::vector<Action>& actions, std::size_t from, std::size_t to) {
    const auto at = [&](std::size_t i) { return actions.begin() + static_cast<std::ptrdiff_t>(i); };
    if (from < to) {
      std::rotate(at(from), at(from + 1), at(to + 1));
    } else {
      std::rotate(at(to), at(from), at(from + 1));
    }
  }

  // The busiest rank works all the time but until the first micro-batch has arrived there and, if
  // halves must stay together, after its last backward pass.
  double lower_bound() const {
    double bound = 0;
    for (int rank = 0; rank < num_ranks_; ++rank) bound = std::max(bound, least_of(rank));
    return bound;
  }

  double least_of(int rank) const {
    double work = 0, before = 0;
    bool reached = false;
    for (std::size_t stage = 0; stage < layout_.size(); ++stage) {
      const StageCosts& costs = costs_.stages[stage];
      const double apart = costs.input_gradient_s + costs.weight_gradient_s;
      const double whole = costs.backward_s.value_or(apart);
      const double backward = options_.may_split_backward ? std::min(apart, whole) : whole;
      reached = reached || layout_[stage] == rank;
      if (layout_[stage] == rank) work += (costs.forward_s + backward) * num_micro_batches_;
      if (!reached) {
        before += costs.forward_s;
        if (layout_[stage + 1] != layout_[stage]) before += costs.transfer_s;
      }
    }
    return before + work;
  }

  [[noreturn]] void fail_of_memory() const {
    const auto& limits = options_.limits.bytes_of_rank;
    for (std::size_t rank = 0; rank < limits.size(); ++rank) {
      double least = 0;  // one micro-batch on each of its stages
      for (std::size_t stage = 0; stage < layout_.size(); ++stage) {
        if (layout_[stage] == static_cast<int>(rank)) {
          least +=
              std::max(costs_.stages[stage].activation_bytes, costs_.stages[stage].deferred_bytes);
        }
      }
      check(least <= limits[rank],
            "no schedule fits into memory: rank {} may keep {:.4g} bytes, one micro-batch on its "
            "stages needs {:.4g}; use smaller micro-batches or more ranks",
            rank, limits[rank], least);
    }
    fail(ErrorCode::kInvalid,
         "no schedule found that fits into the memory of all ranks; use smaller micro-batches or "
         "more ranks");
  }

  const std::vector<int>& layout_;
  const int num_micro_batches_;
  const Costs& costs_;
  const SearchOptions& options_;
  const int num_ranks_;
  PlanClock clock_;
  std::vector<Timed> found_;
  std::vector<SearchCandidate> named_;
};

}  // namespace

SearchResult search_plan(const std::vector<int>& rank_of_stage, int num_micro_batches,
                         const Costs& costs, const SearchOptions& options) {
  check(!rank_of_stage.empty() && num_micro_batches >= 1,
        "a search needs stages and micro-batches, not {} and {}", rank_of_stage.size(),
        num_micro_batches);
  const int num_ranks = *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
  for (int rank = 0; rank < num_ranks; ++rank) {
    check(std::find(rank_of_stage.begin(), rank_of_stage.end(), rank) != rank_of_stage.end(),
          "search: rank {} of {} has no stage", rank, num_ranks);
  }
  check(*std::min_element(rank_of_stage.begin(), rank_of_stage.end()) >= 0,
        "search: a stage on a rank below 0");
  require_costs(costs, static_cast<int>(rank_of_stage.size()));
  const std::size_t limits = options.limits.bytes_of_rank.size();
  check(limits == 0 || limits == static_cast<std::size_t>(num_ranks),
        "search: memory limits of {} ranks for a pipeline of {}", limits, num_ranks);
  return Search(rank_of_stage, num_micro_batches, costs, options).run();
}

}  // namespace paceline::pipeline
