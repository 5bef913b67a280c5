#include "paceline/planning/schedules/search.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <string_view>
#include <tuple>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {
namespace {

constexpr std::size_t kStarts = 3;             // the number of best schedules that are improved
constexpr std::size_t kMaxShift = 8;           // the most places by which a change moves an action
constexpr std::size_t kImprovedDivisions = 2;  // the number of best divisions that are improved
constexpr double kNoise = 0.01;                // relative noise of measured costs
constexpr const char* kSearchedName = "searched";

// A schedule with its simulated time and memory.
struct Timed {
  PipelineSchedule schedule;
  double seconds = 0;
  double bytes = 0;   // the sum of the ranks' peaks
  double busy_s = 0;  // the sum of the ranks' work

  // If two schedules are equally fast, the one with fewer bytes is better.
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
    try_named_schedules();
    try_list_schedules();
    if (found_.empty()) fail_of_memory();
    const auto better = [](const Timed& a, const Timed& b) { return a.is_better_than(b); };
    std::stable_sort(found_.begin(), found_.end(), better);
    for (std::size_t i = 0; i < std::min(found_.size(), kStarts); ++i) improve(found_[i]);
    const Timed& best = smallest_within(allowed_seconds());
    return {best.schedule, simulate(best.schedule, costs_), lower_bound(), std::move(named_)};
  }

 private:
  // Returns the time up to which a step counts as equally fast as the fastest one: kNoise more than
  // the fastest, but no more than the best named schedule that fits.
  double allowed_seconds() const {
    const double least =
        std::min_element(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
          return a.seconds < b.seconds;
        })->seconds;
    double allowed = least * (1 + kNoise);
    for (const SearchCandidate& named : named_) {
      if (named.fits) allowed = std::min(allowed, named.seconds);
    }
    return std::max(allowed, least);
  }

  // Returns the schedule with the fewest bytes among those that take at most `seconds`.
  const Timed& smallest_within(double seconds) const {
    const auto rank = [&](const Timed& one) {
      return std::tuple(one.seconds > seconds, one.bytes, one.schedule.name == kSearchedName,
                        one.seconds);
    };
    return *std::min_element(found_.begin(), found_.end(),
                             [&](const Timed& a, const Timed& b) { return rank(a) < rank(b); });
  }

  // Returns whether the schedule that the clock has just run fits into memory.
  bool fits() const {
    const auto& limits = options_.limits.bytes_of_rank;
    for (std::size_t rank = 0; rank < limits.size(); ++rank) {
      if (clock_.peak_bytes()[rank] > limits[rank]) return false;
    }
    return true;
  }

  double peak_of_all() const {
    return std::accumulate(clock_.peak_bytes().begin(), clock_.peak_bytes().end(), 0.0);
  }
  double busy_of_all() const {
    return std::accumulate(clock_.busy_s().begin(), clock_.busy_s().end(), 0.0);
  }

  void try_named_schedules() {
    const int per_rank = static_cast<int>(layout_.size()) / num_ranks_;
    if (layout_ != looped_layout(num_ranks_, std::max(per_rank, 1))) return;
    for (const std::string_view name : pipeline_schedule_names()) {
      if (name == "zero-bubble" && !options_.may_split_backward) continue;
      try {
        add_named(pipeline_schedule(name, num_ranks_, num_micro_batches_, per_rank));
      } catch (const Error&) {
        // The schedule does not exist for these numbers of ranks, stages and micro-batches.
      }
    }
  }

  void add_named(PipelineSchedule schedule) {
    clock_.run(schedule.ranks);
    const double most = *std::max_element(clock_.peak_bytes().begin(), clock_.peak_bytes().end());
    named_.push_back({schedule.name, clock_.seconds(), most, fits()});
    if (fits()) add(std::move(schedule));
  }

  // Adds `schedule`, which the clock has just run, with its time and memory.
  void add(PipelineSchedule schedule) {
    found_.push_back({std::move(schedule), clock_.seconds(), peak_of_all(), busy_of_all()});
  }

  // Adds the schedules that list_schedule() makes with many policies, if they fit into memory.
  void try_list_schedules() {
    // Each entry is a value of ListPolicy::more_in_flight; nullopt: only memory limits the number.
    std::vector<std::optional<int>> allowances = {std::nullopt};
    for (const int more : {0, 1, 2, num_ranks_ / 2, num_ranks_ - 1, 2 * num_ranks_}) {
      if (std::find(allowances.begin(), allowances.end(), more) == allowances.end())
        allowances.emplace_back(more);
    }
    // Each entry is the first micro-batch whose backward pass is split into halves: none is split,
    // all are, or only the last num_ranks_ of the step.
    std::vector<int> splits = {num_micro_batches_};
    if (options_.may_split_backward) {
      splits.push_back(0);
      if (num_micro_batches_ > num_ranks_) splits.push_back(num_micro_batches_ - num_ranks_);
    }
    for (const int split_from : splits) {
      for (const auto& more : allowances) {
        for (const bool forward_first : {false, true}) try_orders(split_from, more, forward_first);
      }
    }
  }

  void try_orders(int split_from, std::optional<int> more, bool forward_first) {
    for (const double slack : {0.0, 0.5, 1.0}) {
      if (slack > 0 && split_from == num_micro_batches_) continue;
      for (const auto order :
           {StageOrder::kDrainFirst, StageOrder::kFillFirst, StageOrder::kByRound}) {
        const bool one_stage = static_cast<int>(layout_.size()) == num_ranks_;
        if (one_stage && order != StageOrder::kDrainFirst) continue;
        auto schedule = list_schedule(layout_, num_micro_batches_, costs_, options_.limits,
                                      {split_from, more, slack, forward_first, order});
        if (schedule && clock_.run(schedule->ranks) && fits()) add(std::move(*schedule));
      }
    }
  }

  // Improves `best` by random changes, one at a time. A change is kept if it makes the step faster,
  // or if the step takes equally long and the total work of the ranks does not grow.
  void improve(Timed& best) {
    std::mt19937_64 random(options_.seed);
    const double bound = lower_bound();
    for (int trial = 0; trial < options_.num_trials && best.seconds > bound; ++trial) {
      auto& actions = best.schedule.ranks[below(random, best.schedule.ranks.size())];
      const std::vector<Action> before = actions;
      const bool is_valid = change(actions, random) && clock_.run(best.schedule.ranks) && fits();
      const double seconds = clock_.seconds(), busy = busy_of_all();
      if (!is_valid || seconds > best.seconds || (seconds == best.seconds && busy > best.busy_s)) {
        actions = before;
        continue;
      }
      if (seconds < best.seconds) best.schedule.name = kSearchedName;
      best.seconds = seconds;
      best.bytes = peak_of_all();
      best.busy_s = busy;
    }
    if (best.schedule.name != kSearchedName) restore_named(best);
  }

  static std::size_t below(std::mt19937_64& random, std::size_t bound) {
    return static_cast<std::size_t>(random() % bound);
  }

  // Makes a random change to the actions of a rank: moves an action, splits a backward pass into
  // halves, or joins two halves. Returns false if the change is not possible or would reorder the
  // micro-batches of a stage; the caller must then restore `actions`, which may be half changed.
  bool change(std::vector<Action>& actions, std::mt19937_64& random) const {
    const std::size_t at = below(random, actions.size());
    const std::size_t places = 1 + below(random, kMaxShift);
    const bool later = random() % 2 == 0, splits_or_joins = random() % 4 == 0;
    const bool is_possible = actions[at].kind == Action::Kind::kInputGradient ||
                             actions[at].kind == Action::Kind::kBackward;
    if (!splits_or_joins || !is_possible || !options_.may_split_backward) {
      if (later ? at + places >= actions.size() : at < places) return false;
      return move(actions, at, later ? at + places : at - places);
    }
    return actions[at].kind == Action::Kind::kBackward ? split(actions, at, places)
                                                       : join(actions, at);
  }

  // Splits the backward pass at `at` into its halves. The weight gradient is then `places` places
  // later, or last in the list. If that would reorder the micro-batches of the stage, returns
  // false and leaves the weight gradient directly behind the input gradient.
  static bool split(std::vector<Action>& actions, std::size_t at, std::size_t places) {
    const auto [kind, stage, micro_batch] = actions[at];
    actions[at].kind = Action::Kind::kInputGradient;
    const std::size_t behind = at + 1;
    actions.insert(iterator(actions, behind), {Action::Kind::kWeightGradient, stage, micro_batch});
    return move(actions, behind, std::min(at + places, actions.size() - 1));
  }

  // Joins the input gradient at `at` with its weight gradient, which is later in the list, into a
  // whole backward pass. Returns false if the weight gradient cannot be moved next to it.
  static bool join(std::vector<Action>& actions, std::size_t at) {
    const Action weights{Action::Kind::kWeightGradient, actions[at].stage, actions[at].micro_batch};
    const auto found = std::find(iterator(actions, at), actions.end(), weights);
    if (found == actions.end()) return false;
    if (!move(actions, static_cast<std::size_t>(found - actions.begin()), at + 1)) return false;
    actions.erase(iterator(actions, at + 1));
    actions[at].kind = Action::Kind::kBackward;
    return true;
  }

  // Replaces `best` by the unchanged named schedule. Call this if no change has made it faster.
  void restore_named(Timed& best) {
    best.schedule = pipeline_schedule(best.schedule.name, num_ranks_, num_micro_batches_,
                                      static_cast<int>(layout_.size()) / num_ranks_);
    clock_.run(best.schedule.ranks);
    best.bytes = peak_of_all();
    best.busy_s = busy_of_all();
  }

  static std::vector<Action>::iterator iterator(std::vector<Action>& actions, std::size_t at) {
    return actions.begin() + static_cast<std::ptrdiff_t>(at);
  }

  // Returns whether `a` and `b` must stay in the order of their micro-batches: both belong to the
  // same stage, and both make outputs, input gradients or weight gradients.
  static bool must_keep_order(const Action& a, const Action& b) {
    return a.stage == b.stage &&
           ((a.kind == Action::Kind::kForward && b.kind == Action::Kind::kForward) ||
            (a.makes_input_gradient() && b.makes_input_gradient()) ||
            (a.makes_weight_gradient() && b.makes_weight_gradient()));
  }

  // Moves the action at `from` to `to`. Returns false, and moves nothing, if that would reorder the
  // micro-batches of a stage.
  static bool move(std::vector<Action>& actions, std::size_t from, std::size_t to) {
    for (std::size_t i = std::min(from, to); i <= std::max(from, to); ++i) {
      if (i != from && must_keep_order(actions[i], actions[from])) return false;
    }
    if (from < to) {
      std::rotate(iterator(actions, from), iterator(actions, from + 1), iterator(actions, to + 1));
    } else {
      std::rotate(iterator(actions, to), iterator(actions, from), iterator(actions, from + 1));
    }
    return true;
  }

  // Returns a time that no step can undercut: the longest of shortest_time_of() over all ranks.
  double lower_bound() const {
    double bound = 0;
    for (int rank = 0; rank < num_ranks_; ++rank) bound = std::max(bound, shortest_time_of(rank));
    return bound;
  }

  // Returns the time of a rank that idles only until the first micro-batch reaches it.
  double shortest_time_of(int rank) const {
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

  // Throws the error for a search that has found no schedule within the memory limits.
  [[noreturn]] void fail_of_memory() const {
    const auto& limits = options_.limits.bytes_of_rank;
    for (std::size_t rank = 0; rank < limits.size(); ++rank) {
      double least = 0;  // for one micro-batch on each stage of the rank
      for (std::size_t stage = 0; stage < layout_.size(); ++stage) {
        if (layout_[stage] == static_cast<int>(rank)) {
          least +=
              std::max(costs_.stages[stage].activation_bytes, costs_.stages[stage].deferred_bytes);
        }
      }
      check(
          least <= limits[rank],
          "no schedule fits into memory: rank {} may keep {:.4g} bytes, but one micro-batch on its "
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
  ScheduleClock clock_;
  std::vector<Timed> found_;
  std::vector<SearchCandidate> named_;
};

void require_searchable(const std::vector<int>& rank_of_stage, int num_micro_batches,
                        const Costs& costs, const MemoryLimits& limits) {
  check(!rank_of_stage.empty() && num_micro_batches >= 1,
        "search: {} stages and {} micro-batches were given; at least one of each is needed",
        rank_of_stage.size(), num_micro_batches);
  const int num_ranks = *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
  for (int rank = 0; rank < num_ranks; ++rank) {
    check(std::find(rank_of_stage.begin(), rank_of_stage.end(), rank) != rank_of_stage.end(),
          "search: rank {} of {} has no stage", rank, num_ranks);
  }
  check(*std::min_element(rank_of_stage.begin(), rank_of_stage.end()) >= 0,
        "search: a stage is on a rank below 0");
  require_costs(costs, static_cast<int>(rank_of_stage.size()));
  const std::size_t count = limits.bytes_of_rank.size();
  check(count == 0 || count == static_cast<std::size_t>(num_ranks),
        "search: memory limits of {} ranks for a pipeline of {} ranks", count, num_ranks);
}

double seconds_of(const DivisionSearch& search) { return search.found.timed.seconds; }

// Returns the fastest named schedule of all divisions that fits into memory; `fits` of the result
// is false if no schedule fits.
SearchCandidate best_named_of(const std::vector<DivisionSearch>& all) {
  SearchCandidate best{.fits = false};
  for (const DivisionSearch& one : all) {
    for (const SearchCandidate& named : one.found.named) {
      if (named.fits && (!best.fits || named.seconds < best.seconds)) best = named;
    }
  }
  return best;
}

// Returns the result with the fewest stages among those whose step takes at most `seconds`; among
// several of these, the fastest.
const DivisionSearch& simplest_within(const std::vector<DivisionSearch>& all, double seconds) {
  const auto rank = [&](const DivisionSearch& one) {
    return std::tuple(seconds_of(one) > seconds, one.found.schedule.num_stages(), seconds_of(one));
  };
  return *std::min_element(all.begin(), all.end(),
                           [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

}  // namespace

SearchResult search_schedule(const std::vector<int>& rank_of_stage, int num_micro_batches,
                             const Costs& costs, const SearchOptions& options) {
  require_searchable(rank_of_stage, num_micro_batches, costs, options.limits);
  return Search(rank_of_stage, num_micro_batches, costs, options).run();
}

std::vector<std::vector<int>> possible_layouts(int num_ranks, int num_layers,
                                               int most_stages_per_rank) {
  check(num_ranks >= 1 && most_stages_per_rank >= 1 && num_layers >= num_ranks,
        "layouts of {} layers on {} ranks, with at most {} stages each", num_layers, num_ranks,
        most_stages_per_rank);
  const int most = std::min(most_stages_per_rank, num_layers / num_ranks);
  std::vector<std::vector<int>> layouts;
  for (int each = 1; each <= most; ++each) layouts.push_back(looped_layout(num_ranks, each));
  if (most > 1 && num_ranks > 1) layouts.push_back(v_layout(num_ranks));
  return layouts;
}

DivisionSearch search_divisions(const std::vector<Division>& divisions, int num_micro_batches,
                                const SearchOptions& options) {
  check(!divisions.empty(), "a search over divisions needs at least one");
  for (const auto& [layout, layers, costs] : divisions)
    require_searchable(layout, num_micro_batches, costs, options.limits);
  SearchOptions without_trials = options;
  without_trials.num_trials = 0;
  const auto search = [&](std::size_t division, const SearchOptions& with) {
    const auto& [layout, layers, costs] = divisions[division];
    return Search(layout, num_micro_batches, costs, with).run();
  };
  std::vector<DivisionSearch> all;
  std::optional<Error> does_not_fit;  // the error of the first division that does not fit
  for (std::size_t i = 0; i < divisions.size(); ++i) {
    try {
      all.push_back({.division = i, .found = search(i, without_trials)});
    } catch (const Error& error) {
      if (!does_not_fit) does_not_fit = error;
    }
  }
  if (all.empty()) throw *does_not_fit;
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return seconds_of(a) < seconds_of(b); });
  double least = seconds_of(all.front());
  for (std::size_t i = 0; i < std::min(all.size(), kImprovedDivisions); ++i) {
    all[i].found = search(all[i].division, options);
    least = std::min(least, seconds_of(all[i]));
  }
  const SearchCandidate named = best_named_of(all);
  const double most = least * (1 + kNoise);
  const double allowed = named.fits ? std::clamp(named.seconds, least, most) : most;
  DivisionSearch result = simplest_within(all, allowed);
  result.best_named = named;
  return result;
}

}  // namespace paceline::pipeline
