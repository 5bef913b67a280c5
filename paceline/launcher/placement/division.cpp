#include "paceline/launcher/placement/division.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace paceline::launcher {
namespace {

// Parameters, gradients and Adam's two moments.
constexpr double kCopies = 4, kCopiesOfMoments = 2;
// Of the machine; the rest is for the system and for peaks.
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
              fmt::format("{}: too much; {} when the optimizer's state is divided among them",
                          account(replicas), size_text(sharded_optimizer))};
    }
    const double sharded_model = ranks * other_ + state_;
    if (sharded_model <= usable_) {
      return {Division::kShardedModel, ranks, 1,
              fmt::format("{}: too much; {} when parameters and gradients are divided, too",
                          account(replicas), size_text(sharded_model))};
    }
    if (state_ + other_ <= usable_) return fewer_ranks(replicas);
    return several_machines();
  }

 private:
  std::string account(double replicas) const {
    std::string text =
        fmt::format("parameters of {}: parameters, gradients and Adam's state take {} a rank",
                    size_text(parameters_), size_text(state_));
    if (other_ > 0) text += fmt::format(", the rest of the program {}", size_text(other_));
    return text + fmt::format("; {} for {} rank{} of this machine's {}", size_text(replicas),
                              needs_.num_ranks, needs_.num_ranks == 1 ? "" : "s",
                              size_text(static_cast<double>(needs_.machine_bytes)));
  }

  DivisionAdvice fewer_ranks(double replicas) const {
    const int ranks = static_cast<int>(usable_ / (state_ + other_));
    return {Division::kReplicas, ranks, 1,
            fmt::format("{}: too much, and most of it cannot be divided; {} fit{}, with more "
                        "threads each",
                        account(replicas), ranks, ranks == 1 ? "s" : "")};
  }

  // Not even one rank fits here.
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
        is_slow ? fmt::format("moving shards at 10 Gbit/s takes {:.1f} s beside steps of {:.1f} s",
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

}  // namespace paceline::launcher
