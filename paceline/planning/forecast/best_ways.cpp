#include "paceline/planning/forecast/best_ways.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "paceline/engine/core/check.h"

namespace paceline::planning {
namespace {

// Numbers of micro-batches that are tried with each pipeline.
constexpr std::size_t kMostMicroBatchNumbers = 5;
// More micro-batches for each stage than this gain less than their overhead.
constexpr std::int64_t kMostForEachStage = 16;
// Of the fastest pipelines, as many are searched for a better schedule than those with names,
// unless they have more stages times micro-batches than these: that would take seconds.
constexpr std::size_t kSearchedPipelines = 6;
constexpr int kMostSearched = 64;
// Faster by less is noise of the measurement; the simpler way wins then.
constexpr double kNoise = 0.01;

std::vector<int> divisors_of(std::int64_t number, std::int64_t most) {
  std::vector<int> divisors;
  for (std::int64_t i = 1; i <= std::min(number, most); ++i) {
    if (number % i == 0) divisors.push_back(static_cast<int>(i));
  }
  return divisors;
}

// Of the divisors of a replica's samples those from one for each stage on, about doubling.
std::vector<int> micro_batch_numbers(std::int64_t samples, int stages) {
  if (stages == 1) return divisors_of(samples, 1);
  std::vector<int> numbers;
  for (const int number : divisors_of(samples, stages * kMostForEachStage)) {
    if (number < stages || (!numbers.empty() && number < 2 * numbers.back())) continue;
    numbers.push_back(number);
  }
  if (numbers.size() > kMostMicroBatchNumbers) numbers.resize(kMostMicroBatchNumbers);
  return numbers;
}

// One axis more, or one thing more that is divided, is one more thing to understand.
int complexity(const Way& way) {
  return (way.replicas > 1) + 2 * (way.parts > 1) + 2 * (way.stages > 1) + (way.shard_stage > 0) +
         (way.schedule != "1f1b") + !way.stages_outside;
}

class Searcher {
 public:
  Searcher(const JobProfile& profile, const Machine& machine, std::int64_t global_batch)
      : profile_(profile),
        machine_(machine),
        global_batch_(global_batch),
        forecaster_(profile, machine, global_batch) {}

  Search run() {
    const std::int64_t world = machine_.world_size();
    const int most_stages = profile_.schedules.empty() ? 1 : std::max(1, profile_.num_blocks());
    for (const int parts : divisors_of(std::min<std::int64_t>(profile_.most_parts, world), world)) {
      const bool is_in_host = machine_.ranks_a_host % parts == 0;
      if (world % parts != 0 || profile_.most_parts % parts != 0 || !is_in_host) continue;
      for (const int stages : divisors_of(world / parts, most_stages)) {
        try_mesh({.replicas = static_cast<int>(world / parts / stages),
                  .parts = parts,
                  .stages = stages});
      }
    }
    if (search_.ways.empty()) refuse();
    sort();
    if (try_searched() > 0) sort();
    search_.num_simulations = forecaster_.num_simulations();
    return std::move(search_);
  }

 private:
  void try_mesh(Way way) {
    if (global_batch_ % way.replicas != 0) return;
    const bool has_orders = way.stages > 1 && way.replicas > 1 && machine_.hosts > 1;
    for (const int number : micro_batch_numbers(global_batch_ / way.replicas, way.stages)) {
      way.micro_batches = number;
      for (const bool outside : {true, false}) {
        if (!outside && !has_orders) continue;
        way.stages_outside = outside;
        try_schedules(way);
      }
    }
  }

  void try_schedules(Way way) {
    if (way.stages == 1) return try_shard_stages(way);
    for (const std::string& schedule : profile_.schedules) {
      if (schedule == kSearched) continue;
      way.schedule = schedule;
      try_shard_stages(way);
    }
  }

  // How many ways have come of it.
  std::size_t try_searched() {
    const auto& schedules = profile_.schedules;
    if (std::find(schedules.begin(), schedules.end(), kSearched) == schedules.end()) return 0;
    std::vector<Way> pipelines;
    for (const Forecast& one : search_.ways) {
      Way way = one.way;
      way.schedule = kSearched;
      way.shard_stage = 0;
      const bool is_known = std::find(pipelines.begin(), pipelines.end(), way) != pipelines.end();
      if (way.stages > 1 && way.stages * way.micro_batches <= kMostSearched && !is_known)
        pipelines.push_back(way);
      if (pipelines.size() == kSearchedPipelines) break;
    }
    const std::size_t before = search_.ways.size();
    for (const Way& way : pipelines) try_shard_stages(way);
    return search_.ways.size() - before;
  }

  void try_shard_stages(Way way) {
    for (const int stage : profile_.shard_stages) {
      if (stage > 0 && way.replicas == 1) continue;
      way.shard_stage = stage;
      if (why_not(way, profile_, machine_, global_batch_).empty())
        search_.ways.push_back(forecaster_.forecast(way));
    }
  }

  [[noreturn]] void refuse() const {
    fail(
        ErrorCode::kInvalid,
        "{} ranks cannot divide a global batch of {} samples among them: {} ranks are the most "
        "that share a replica (heads: {}, blocks: {}); choose a larger global batch or fewer ranks",
        machine_.world_size(), global_batch_, machine_.world_size() / global_batch_ + 1,
        profile_.most_parts, profile_.num_blocks());
  }

  void sort() {
    auto& ways = search_.ways;
    std::stable_sort(ways.begin(), ways.end(), [](const Forecast& a, const Forecast& b) {
      if (a.fits != b.fits) return a.fits;
      if (!a.fits) return a.memory.host < b.memory.host;
      return a.samples_per_second() > b.samples_per_second();
    });
    // The simplest of those as fast as the fastest comes first.
    const auto end = std::find_if(ways.begin(), ways.end(), [&](const Forecast& way) {
      return way.fits != ways.front().fits ||
             way.samples_per_second() < (1 - kNoise) * ways.front().samples_per_second();
    });
    if (!ways.front().fits) return;
    const auto simplest = std::min_element(ways.begin(), end, [](const auto& a, const auto& b) {
      return complexity(a.way) < complexity(b.way);
    });
    std::rotate(ways.begin(), simplest, simplest + 1);
  }

  const JobProfile& profile_;
  const Machine& machine_;
  const std::int64_t global_batch_;
  Forecaster forecaster_;
  Search search_;
};

}  // namespace

Search search_ways(const JobProfile& profile, const Machine& machine, std::int64_t global_batch) {
  return Searcher(profile, machine, global_batch).run();
}

std::vector<std::string> reasons_for(const Search& search) {
  const Forecast& best = search.ways.front();
  const StepTimes& times = best.times;
  std::vector<std::string> reasons;
  const auto share = [&](double seconds) { return 100 * seconds / best.step_s(); };
  const auto because = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    reasons.push_back(fmt::format(format, std::forward<Args>(args)...));
  };
  because(
      "of a step of {:.4g} ms {:.0f}% are passes, {:.0f}% bubble, {:.0f}% exchange within "
      "layers, {:.0f}% exchange of gradients that nothing hides, {:.0f}% the optimizer",
      best.step_s() * 1e3, share(times.compute), share(times.bubble), share(times.exchange),
      share(times.gradients), share(times.optimizer));
  const auto compare = [&](const char* what, const std::function<bool(const Way&)>& wanted) {
    if (wanted(best.way)) return;
    const auto other = std::find_if(search.ways.begin(), search.ways.end(),
                                    [&](const Forecast& way) { return wanted(way.way); });
    if (other == search.ways.end()) return;
    if (!other->fits) {
      because("{} ({}): does not fit into memory", what, mesh_text(other->way));
      return;
    }
    because("{} ({}): {:.2f} times the step; {:.0f}% bubble, {:.0f}% exchanges", what,
            mesh_text(other->way), best.samples_per_second() / other->samples_per_second(),
            100 * other->times.bubble / other->step_s(),
            100 * (other->times.exchange + other->times.gradients) / other->step_s());
  };
  compare("replicas only",
          [](const Way& way) { return way.parts == 1 && way.stages == 1 && way.shard_stage == 0; });
  compare("layers divided", [](const Way& way) { return way.parts > 1 && way.stages == 1; });
  compare("a pipeline", [](const Way& way) { return way.stages > 1 && way.parts == 1; });
  if (best.goodput < 1) {
    because("failures and checkpoints take {:.1f}% of the time, with a checkpoint every {:.0f} s",
            100 * (1 - best.goodput), best.interval_s);
  }
  if (times.stragglers > 0)
    because("waiting for the slowest of {} ranks takes {:.0f}%", best.way.num_ranks(),
            share(times.stragglers));
  return reasons;
}

}  // namespace paceline::planning
