#pragma once

// One cycle (Smith and Topin, 2018), as torch.optim.lr_scheduler.OneCycleLR computes it: the rate
// rises to max_lr and falls far below where it began, while the momentum does the opposite.

#include <cstdint>
#include <vector>

#include "paceline/training/optim/schedule.h"

namespace paceline::optim {

enum class Anneal : std::uint8_t { kCosine, kLinear };

struct OneCycleLrOptions {
  std::vector<double> max_lr;    // one of all groups, or one of each
  std::int64_t total_steps = 0;  // of the whole training
  double pct_start = 0.3;        // the share of the steps in which the rate rises
  Anneal anneal = Anneal::kCosine;
  bool cycle_momentum = true;  // of Adam and its like beta1
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         // it begins at max_lr / div_factor
  double final_div_factor = 1e4;  // and ends at that divided by this
  bool three_phase = false;       // falls to the first rate as it rose, then to the last one
};

// The optimizer's own rates do not matter. step() may be called after each of the `total_steps`;
// after the last one the rate stays, where PyTorch's continues the curve. Error(kInvalid) for a
// step after `total_steps`, for options out of range, and for cycle_momentum with a group that has
// no momentum.
class OneCycleLr final : public LrSchedule {
 public:
  OneCycleLr(Optimizer& optimizer, const OneCycleLrOptions& options);
  const char* name() const override { return "one_cycle"; }

 private:
  // Ends at `end`, which is a step but need not be whole.
  struct Phase {
    double end;
    double first_rate, last_rate;  // of a max_lr of 1
    double first_momentum, last_momentum;
  };

  std::vector<Phase> phases() const;
  double between(double first, double last, double share) const;
  double rate(std::size_t group, std::int64_t step) const override;
  void apply() override;
  Words options() const override;

  OneCycleLrOptions options_;
};

}  // namespace paceline::optim
