#include "paceline/planning/forecast/best_ways.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"

namespace paceline::planning {

namespace {

// The largest number of values of Way::micro_batches that are tried with each pipeline.
constexpr std::size_t kMaxMicroBatchNumbers = 5;
// Beyond this number of micro-batches for each stage, the overhead exceeds the gain.
constexpr std::int64_t kMaxMicroBatchesPerStage = 16;
// Better schedules than the named ones are searched for only for this number of the fastest
// pipelines, and only if stages times micro-batches are at most kMaxSearched: a larger search takes
// seconds.
constexpr std::size_t kSearchedPipelines = 6;
constexpr int kMaxSearched = 64;
// A relative difference below this is measurement noise; the simpler of the two ways then wins.
constexpr double kNoise = 0.01;

std::vector<int> divisors_of(std::int64_t number, std::int64_t most) {
  std::vector<int> divisors;
  for (std::int64_t i = 1; i <= std::min(number, most); ++i) {
    if (number % i == 0) divisors.push_back(static_cast<int>(i));
  }
  return divisors;
}

// The numbers of micro-batches to try: divisors of a replica's samples, starting at one micro-batch
// for each stage and roughly doubling.
std::vector<int> micro_batch_numbers(std::int64_t samples, int stages) {
  if (stages == 1) return divisors_of(samples, 1);
  std::vector<int> numbers;
  for (const int number : divisors_of(samples, stages * kMaxMicroBatchesPerStage)) {
    if (number < stages || (!numbers.empty() && number < 2 * numbers.back())) continue;
    numbers.push_back(number);
  }
  if (numbers.size() > kMaxMicroBatchNumbers) numbers.resize(kMaxMicroBatchNumbers);
  return numbers;
}

// How much a user must understand to use a way: one point for each feature that the way uses, but
// two for tp and two for pp.
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
      const bool is_in_host = machine_.ranks_per_host % parts == 0;
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
    const bool axis_order_matters = way.stages > 1 && way.replicas > 1 && machine_.hosts > 1;
    for (const int number : micro_batch_numbers(global_batch_ / way.replicas, way.stages)) {
      way.micro_batches = number;
      for (const bool outside : {true, false}) {
        if (!outside && !axis_order_matters) continue;
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

  // Adds pipelines with searched schedules; returns their number.
  std::size_t try_searched() {
    const auto& schedules = profile_.schedules;
    if (std::find(schedules.begin(), schedules.end(), kSearched) == schedules.end()) return 0;
    std::vector<Way> pipelines;
    for (const Forecast& one : search_.ways) {
      Way way = one.way;
      way.schedule = kSearched;
      way.shard_stage = 0;
      const bool is_known = std::find(pipelines.begin(), pipelines.end(), way) != pipelines.end();
      if (way.stages > 1 && way.stages * way.micro_batches <= kMaxSearched && !is_known)
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
        "{} ranks cannot divide a global batch of {} samples equally: with at most {} heads and "
        "{} blocks to divide among ranks, no possible number of replicas divides the batch; choose "
        "a multiple of {} samples, or another number of ranks",
        machine_.world_size(), global_batch_, profile_.most_parts, profile_.num_blocks(),
        machine_.world_size());
  }

  void sort() {
    auto& ways = search_.ways;
    std::stable_sort(ways.begin(), ways.end(), [](const Forecast& a, const Forecast& b) {
      if (a.fits != b.fits) return a.fits;
      if (!a.fits) return a.memory.host < b.memory.host;
      return a.samples_per_second() > b.samples_per_second();
    });
    // The simplest way whose throughput is within kNoise of the highest comes first.
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
      "a step takes {:.4g} ms: {:.0f}% forward and backward passes, {:.0f}% bubble, {:.0f}% "
      "all-reduces of divided layers, {:.0f}% exposed exchange of gradients, {:.0f}% optimizer, "
      "{:.0f}% data and other",
      best.step_s() * 1e3, share(times.compute), share(times.bubble), share(times.exchange),
      share(times.gradients), share(times.optimizer), share(times.other));
  const auto compare = [&](const char* what, const std::function<bool(const Way&)>& wanted) {
    if (wanted(best.way)) return;
    const auto other = std::find_if(search.ways.begin(), search.ways.end(),
                                    [&](const Forecast& way) { return wanted(way.way); });
    if (other == search.ways.end()) return;
    if (!other->fits) {
      because("{} ({}): does not fit into memory", what, mesh_text(other->way));
      return;
    }
    because("{} ({}): {:.2f} times as long per sample; {:.0f}% bubble, {:.0f}% communication", what,
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

namespace {

std::string step_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string schedule_text(const Way& way) {
  if (way.stages == 1) return "-";
  return fmt::format("{} x{}", way.schedule, way.micro_batches);
}

std::string sharding_text(const Way& way) {
  return way.shard_stage == 0 ? "DDP" : fmt::format("stage {}", way.shard_stage);
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string error_text(double predicted, double measured) {
  return fmt::format("{:+.1f}%", percent(predicted - measured, measured));
}

std::string summary_of(const char* what, std::vector<double> errors) {
  if (errors.empty()) return "";
  std::sort(errors.begin(), errors.end());
  const std::size_t count = errors.size();
  const double median = (errors[(count - 1) / 2] + errors[count / 2]) / 2;
  return fmt::format("{}: error {:.1f}% in the median, {:.1f}% at worst\n", what, median,
                     errors.back());
}

}  // namespace

std::string memory_text(double bytes) {
  if (bytes < 1e9) return fmt::format("{:.0f} MB", bytes / 1e6);
  return fmt::format("{:.4g} GB", bytes / 1e9);
}

std::string way_table(const Search& search, const JobProfile& profile, std::size_t rows) {
  std::string text =
      fmt::format("{:<22}{:<9}{:<17}{:>10}{:>9}{:>8}{:>10}{:>11}{:>12}{:>10}{:>10}\n", "mesh",
                  "sharding", "schedule", "step", "passes", "bubble", "exchange", "optimizer",
                  profile.unit + "/s", "a rank", "a host");
  for (std::size_t i = 0; i < std::min(rows, search.ways.size()); ++i) {
    const Forecast& way = search.ways[i];
    const StepTimes& times = way.times;
    const double step = way.step_s();
    text += fmt::format(
        "{:<22}{:<9}{:<17}{:>10}{:>8.0f}%{:>7.0f}%{:>9.0f}%{:>10.0f}%{:>12.4g}{:>10}{:>10}{}\n",
        mesh_text(way.way), sharding_text(way.way), schedule_text(way.way), step_text(step),
        percent(times.compute + times.stragglers, step), percent(times.bubble, step),
        percent(times.exchange + times.gradients, step), percent(times.optimizer, step),
        way.samples_per_second() * profile.units_per_sample, memory_text(way.memory.rank.all()),
        memory_text(way.memory.host),
        !way.fits ? "  does not fit"
        : i == 0  ? "  <- best"
                  : "");
  }
  return text;
}

std::string memory_table(std::span<const Forecast> ways, const Machine& machine) {
  std::string text = fmt::format("{:<9}{:>12}{:>11}{:>11}{:>13}{:>9}{:>10}{:>10}{:>12}{:>10}\n",
                                 "sharding", "parameters", "gradients", "optimizer", "activations",
                                 "working", "process", "a rank", "once a host", "a host");
  for (const Forecast& way : ways) {
    const RankMemory& rank = way.memory.rank;
    text += fmt::format(
        "{:<9}{:>12}{:>11}{:>11}{:>13}{:>9}{:>10}{:>10}{:>12}{:>10}{}\n", sharding_text(way.way),
        memory_text(rank.parameters), memory_text(rank.gradients), memory_text(rank.optimizer),
        memory_text(rank.activations), memory_text(rank.working), memory_text(rank.process),
        memory_text(rank.all()), memory_text(way.memory.host_copy), memory_text(way.memory.host),
        machine.memory_bytes <= 0 ? ""
        : way.fits                ? "  fits"
                                  : "  does not fit");
  }
  if (machine.memory_bytes > 0)
    text += fmt::format("a host has {}\n", memory_text(machine.memory_bytes));
  return text;
}

std::string measured_table(std::span<const MeasuredWay> ways) {
  std::string text =
      fmt::format("{:<22}{:<9}{:<17}{:>11}{:>11}{:>9}{:>11}{:>11}{:>9}\n", "mesh", "sharding",
                  "schedule", "predicted", "measured", "error", "predicted", "measured", "error");
  std::vector<double> errors_of_time, errors_of_memory;
  for (const MeasuredWay& one : ways) {
    const Way& way = one.forecast.way;
    text += fmt::format("{:<22}{:<9}{:<17}{:>11}", mesh_text(way), sharding_text(way),
                        schedule_text(way), step_text(one.forecast.step_s()));
    if (one.step_s <= 0) {
      text += fmt::format("  {}\n", one.problem);
      continue;
    }
    const double memory = one.forecast.memory.host;
    text += fmt::format("{:>11}{:>9}{:>11}{:>11}{:>9}\n", step_text(one.step_s),
                        error_text(one.forecast.step_s(), one.step_s), memory_text(memory),
                        memory_text(one.host_bytes), error_text(memory, one.host_bytes));
    errors_of_time.push_back(std::abs(percent(one.forecast.step_s() - one.step_s, one.step_s)));
    errors_of_memory.push_back(std::abs(percent(memory - one.host_bytes, one.host_bytes)));
  }
  return text + summary_of("step", errors_of_time) + summary_of("memory", errors_of_memory);
}

}  // namespace paceline::planning
