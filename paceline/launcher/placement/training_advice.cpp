#include "paceline/launcher/placement/training_advice.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/launcher/placement/placement.h"

namespace paceline::launcher {

namespace {

// Memory in multiples of the model's size: kCopies counts the parameters, the gradients and Adam's
// two moments, kCopiesOfMoments only the moments.
constexpr double kCopies = 4, kCopiesOfMoments = 2;
// The share of the machine's memory that a job may use; the rest is for the system and for peaks.
constexpr double kUsable = 0.9;
// A sharded model gathers its parameters for the forward and the backward pass and scatters its
// gradients: three times its size through each machine's link.
constexpr double kTrafficOfShards = 3;
constexpr double kSharedLink = 1.25e9;  // bytes/s

class Choice {
 public:
  explicit Choice(const TrainingNeeds& needs)
      : needs_(needs),
        parameters_(static_cast<double>(needs.parameter_bytes)),
        state_(kCopies * parameters_),
        other_(std::max(0.0, static_cast<double>(needs.rank_bytes) - state_)),
        usable_(kUsable * static_cast<double>(needs.machine_bytes)) {}

  DivisionAdvice choose() const {
    const int ranks = needs_.num_ranks;
    const double replicas = ranks * (state_ + other_);
    if (replicas <= usable_) {
      return {Division::kReplicas, ranks, 1,
              fmt::format("{}: replicas fit, nothing has to be sharded", account(replicas))};
    }
    const double moments = kCopiesOfMoments * parameters_;
    const double sharded_optimizer = ranks * (state_ - moments + other_) + moments;
    if (sharded_optimizer <= usable_) {
      return {Division::kShardedOptimizer, ranks, 1,
              fmt::format("{}: too much; {} if the optimizer's state is divided among the ranks",
                          account(replicas), size_text(sharded_optimizer))};
    }
    const double sharded_model = ranks * other_ + state_;
    if (sharded_model <= usable_) {
      return {Division::kShardedModel, ranks, 1,
              fmt::format("{}: too much; {} if parameters and gradients are also divided",
                          account(replicas), size_text(sharded_model))};
    }
    if (state_ + other_ <= usable_) return fewer_ranks(replicas);
    return several_machines();
  }

 private:
  std::string account(double replicas) const {
    std::string text =
        fmt::format("parameters of {}: parameters, gradients and Adam's state take {} per rank",
                    size_text(parameters_), size_text(state_));
    if (other_ > 0) text += fmt::format(", the rest of the program {}", size_text(other_));
    return text + fmt::format("; {} for {} of this machine's {}", size_text(replicas),
                              counted(needs_.num_ranks, "rank"),
                              size_text(static_cast<double>(needs_.machine_bytes)));
  }

  DivisionAdvice fewer_ranks(double replicas) const {
    const int ranks = static_cast<int>(usable_ / (state_ + other_));
    return {Division::kReplicas, ranks, 1,
            fmt::format("{}: too much, and most of it cannot be divided; {} would fit, with "
                        "more threads each",
                        account(replicas), counted(ranks, "rank"))};
  }

  // The advice if not even one rank fits on this machine.
  DivisionAdvice several_machines() const {
    const double traffic = kTrafficOfShards * parameters_ / kSharedLink;
    const bool is_slow = needs_.step_seconds > 0 && traffic > needs_.step_seconds;
    const std::string text = account(state_ + other_) + ": not even one fits";
    if (other_ < usable_ && !is_slow) {
      const int machines = static_cast<int>(std::ceil(state_ / (usable_ - other_)));
      return {Division::kShardedModel, 1, machines,
              fmt::format("{}; each of {} machines would hold {}", text, machines,
                          size_text(state_ / machines + other_))};
    }
    const int machines = static_cast<int>(std::ceil((state_ + other_) / usable_));
    const std::string why =
        is_slow ? fmt::format("moving shards at 10 Gbit/s takes {:.1f} s, and a step {:.1f} s",
                              traffic, needs_.step_seconds)
                : "and what cannot be sharded does not fit either";
    return {Division::kSplitModel, 1, machines, fmt::format("{}; {}", text, why)};
  }

  const TrainingNeeds& needs_;
  const double parameters_, state_, other_, usable_;
};

}  // namespace

DivisionAdvice choose_division(const TrainingNeeds& needs) { return Choice(needs).choose(); }

std::string size_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.1f} GB", bytes / 1e9);
  return bytes >= 1e6 ? fmt::format("{:.1f} MB", bytes / 1e6)
                      : fmt::format("{:.0f} KB", bytes / 1e3);
}

namespace {

// A smaller difference in speed is noise; the trial with fewer ranks and threads is then preferred.
constexpr double kNoise = 0.03;
// The smallest gain for which a distributed job is recommended.
constexpr double kWorthwhile = 1.15;
constexpr double kTenGigabit = 1.25e9;  // bytes/s

const Trial* find(const std::vector<Trial>& trials, const Combination& combination) {
  for (const Trial& trial : trials) {
    if (trial.combination == combination && trial.is_measured()) return &trial;
  }
  return nullptr;
}

template <class Wanted>
const Trial* fastest(const std::vector<Trial>& trials, Wanted wanted) {
  const Trial* best = nullptr;
  for (const Trial& trial : trials) {
    if (!trial.is_measured() || !wanted(trial)) continue;
    if (best == nullptr || trial.samples_per_second() > best->samples_per_second()) best = &trial;
  }
  return best;
}

// Chooses among the trials that are as fast as the fastest one, except for noise: the trial with
// the fewest ranks and, for equal numbers of ranks, the fewest threads.
const Trial* choose(const std::vector<Trial>& trials) {
  const Trial* top = fastest(trials, [](const Trial&) { return true; });
  if (top == nullptr) return nullptr;
  const double least = top->samples_per_second() * (1 - kNoise);
  const Trial* best = top;
  for (const Trial& trial : trials) {
    if (!trial.is_measured() || trial.samples_per_second() < least) continue;
    const auto order = [](const Trial& t) {
      return std::pair(t.combination.num_ranks, t.combination.num_threads);
    };
    if (order(trial) < order(*best)) best = &trial;
  }
  return best;
}

// `answer`, or the answer that the division requires if replicas do not fit.
std::string with_division(const std::string& answer, const DivisionAdvice& division) {
  const int ranks = division.num_ranks, machines = division.num_machines;
  switch (division.division) {
    case Division::kShardedOptimizer:
      return fmt::format(
          "data parallel, {} ranks that share the optimizer's state (Optimizer::shard)", ranks);
    case Division::kShardedModel:
      return machines == 1
                 ? fmt::format("data parallel, {} ranks that share the whole model's state", ranks)
                 : fmt::format(
                       "share the whole model's state among at least {} machines "
                       "like this one",
                       machines);
    case Division::kSplitModel:
      return fmt::format("model parallel on at least {} machines like this one", machines);
    default:
      return answer;
  }
}

class Reasoning {
 public:
  Reasoning(const std::vector<Trial>& trials, std::uint64_t memory)
      : trials_(trials), memory_(memory) {}

  Advice conclude() {
    const Trial* best = choose(trials_);
    if (best == nullptr) {
      judge_what_failed();
      return advice_;
    }
    const Trial* single = find(trials_, {1, 1});
    const Trial* alone =
        fastest(trials_, [](const Trial& t) { return t.combination.num_ranks == 1; });
    if (best->combination.num_ranks > 1 && alone != nullptr &&
        best->samples_per_second() < kWorthwhile * alone->samples_per_second()) {
      because(fmt::format("{} ranks would be {:.2f} times as fast as one: not worth it below {}",
                          best->combination.num_ranks,
                          best->samples_per_second() / alone->samples_per_second(), kWorthwhile));
      best = alone;
    }
    advice_.best = best->combination;
    answer(*best);
    compare(*best, single, "one rank on one core");
    if (alone != single && alone != best) compare(*best, alone, "the best single rank");
    weigh_communication(*best);
    weigh_memory(*best);
    weigh_network(*best);
    compare_batches();
    return advice_;
  }

 private:
  void answer(const Trial& best) {
    const auto [ranks, threads] = best.combination;
    if (ranks > 1) {
      advice_.answer = fmt::format("data parallel, {} ranks on this machine", ranks);
    } else if (threads > 1) {
      advice_.answer = fmt::format("one rank with {} threads, not distributed", threads);
    } else {
      advice_.answer = "stay on one core";
    }
  }

  void compare(const Trial& best, const Trial* other, const char* name) {
    if (other == nullptr || other == &best) return;
    const double gain = best.samples_per_second() / other->samples_per_second();
    because(fmt::format("{:.2f} times the throughput of {} ({:.0f} against {:.0f} samples/s)", gain,
                        name, best.samples_per_second(), other->samples_per_second()));
    warn_of_noise(gain, best, *other);
  }

  // Warns if the gain is larger than the number of cores: then other programs probably used the
  // cores during one of the trials. Does not warn if the other trial had several cores, because its
  // threads may have scaled badly.
  void warn_of_noise(double gain, const Trial& best, const Trial& other) {
    if (other.num_cores() > 1 || gain <= best.num_cores() * (1 + kNoise)) return;
    because(
        fmt::format("careful: {:.2f} times is more than {} can give: other programs probably "
                    "disturbed a trial, so measure again on an idle machine",
                    gain, counted(best.num_cores(), "core")));
  }

  void weigh_communication(const Trial& best) {
    if (best.combination.num_ranks == 1) return;
    because(fmt::format("ranks wait for each other {:.0f}% of the time",
                        100 * best.communication_share()));
  }

  // Considers whether the memory that is needed requires shards or a split model.
  void weigh_memory(const Trial& best) {
    if (best.parameter_bytes == 0) {
      because(
          "the program does not report the size of its parameters, so sharding was not considered");
      return;
    }
    TrainingNeeds needs = best.needs(memory_);
    for (const Trial& trial : trials_) {
      if (trial.lacked_memory) want(trial.combination.num_ranks, needs);
    }
    const DivisionAdvice division = choose_division(needs);
    advice_.answer = with_division(advice_.answer, division);
    because(division.reason);
  }

  // Records in `needs` that this number of ranks was tried and needed more memory than there is.
  void want(int num_ranks, TrainingNeeds& needs) const {
    needs.num_ranks = std::max(needs.num_ranks, num_ranks);
    needs.rank_bytes = std::max(needs.rank_bytes, memory_ / static_cast<std::uint64_t>(num_ranks));
  }

  // Gives advice if no trial could be measured: the sizes that were reported before memory ran out
  // are enough for that.
  void judge_what_failed() {
    for (const Trial& trial : trials_) {
      if (!trial.lacked_memory || trial.parameter_bytes == 0) continue;
      TrainingNeeds needs = trial.needs(memory_);
      want(1, needs);
      const DivisionAdvice division = choose_division(needs);
      advice_.answer = with_division("", division);
      because(fmt::format("{}: {}", counted(trial.combination.num_ranks, "rank"), trial.problem));
      return because(division.reason);
    }
  }

  // A ring all-reduce moves twice the size of the gradients through each machine's link.
  void weigh_network(const Trial& best) {
    if (best.parameter_bytes == 0) return;
    const double exchange = 2 * static_cast<double>(best.parameter_bytes) / kTenGigabit;
    const double share = exchange / best.step_seconds();
    because(fmt::format(
        "on more machines with 10 Gbit/s, exchanging gradients takes at least {:.1f} ms, and a "
        "step takes {:.1f} ms: {}",
        1e3 * exchange, 1e3 * best.step_seconds(),
        share < 0.2   ? "the job would scale"
        : share < 1.0 ? "the job can scale if the exchange overlaps with the backward pass"
                      : fmt::format("the network would be the limit: larger batches, or "
                                    "gradients of {} steps in one exchange (no_sync)",
                                    std::ceil(share))));
  }

  void compare_batches() {
    double smallest = 0, largest = 0;
    for (const Trial& trial : trials_) {
      if (!trial.is_measured()) continue;
      const double batch = trial.samples_per_step();
      smallest = smallest == 0 ? batch : std::min(smallest, batch);
      largest = std::max(largest, batch);
    }
    if (largest < 1.05 * smallest) return;
    because(
        fmt::format("careful: the global batch was {:.0f} to {:.0f} samples, so the trials trained "
                    "differently; to keep it fixed, give --global-batch N and put {{batch}} into "
                    "the program's arguments",
                    smallest, largest));
  }

  void because(std::string reason) { advice_.reasons.push_back(std::move(reason)); }

  const std::vector<Trial>& trials_;
  const std::uint64_t memory_;
  Advice advice_;
};

}  // namespace

double Trial::samples_per_second() const { return static_cast<double>(samples) / seconds; }
double Trial::step_seconds() const { return seconds / static_cast<double>(num_steps); }
double Trial::communication_share() const { return communication_seconds / seconds; }
TrainingNeeds Trial::needs(std::uint64_t machine_memory_bytes) const {
  return {.num_ranks = combination.num_ranks,
          .parameter_bytes = static_cast<std::uint64_t>(parameter_bytes),
          .rank_bytes = memory_bytes / static_cast<std::uint64_t>(combination.num_ranks),
          .step_seconds = is_measured() ? step_seconds() : 0,
          .machine_bytes = machine_memory_bytes};
}
double Trial::samples_per_step() const {
  return static_cast<double>(samples) / static_cast<double>(num_steps);
}

std::vector<Combination> sensible_combinations(const Topology& topology,
                                               std::optional<std::int64_t> global_batch) {
  const int cores = automatic_ranks(topology);
  std::vector<Combination> all;
  if (cores > 1) all.push_back({1, 1});
  for (int ranks = 1; ranks <= cores; ++ranks) {
    const bool is_power = (ranks & (ranks - 1)) == 0;
    if (cores % ranks != 0 && !is_power) continue;
    if (global_batch && *global_batch % ranks != 0) continue;
    all.push_back({ranks, cores / ranks});
  }
  while (all.size() > kMaxCombinations) all.erase(all.begin() + static_cast<long>(all.size() / 2));
  return all;
}

Advice conclude(const std::vector<Trial>& trials, std::uint64_t machine_memory_bytes) {
  return Reasoning(trials, machine_memory_bytes).conclude();
}

std::string trial_table(const std::vector<Trial>& trials, const Advice& advice) {
  std::string text = fmt::format("{:>7}{:>9}{:>12}{:>10}{:>15}{:>11}\n", "ranks", "threads",
                                 "samples/s", "step", "communication", "memory");
  for (const Trial& trial : trials) {
    text += fmt::format("{:>7}{:>9}", trial.combination.num_ranks, trial.combination.num_threads);
    if (!trial.is_measured()) {
      text += fmt::format("    {}\n", trial.problem);
      continue;
    }
    text += fmt::format(
        "{:>12.0f}{:>7.1f} ms{:>14.1f}%{:>11}{}\n", trial.samples_per_second(),
        1e3 * trial.step_seconds(), 100 * trial.communication_share(),
        trial.memory_bytes == 0 ? "not seen" : size_text(static_cast<double>(trial.memory_bytes)),
        advice.best == trial.combination ? "  <- best" : "");
  }
  return text;
}

}  // namespace paceline::launcher
