#pragma once

// Learning rates that change during training. A schedule's constructor records the learning rates
// of the optimizer's groups as their base rates. Formulas and defaults are PyTorch's, in closed
// form: except with ReduceLROnPlateau, a rate depends only on options, base rates and the number of
// steps. So a resumed schedule continues with the same bits.
//
//   StepLR schedule(optimizer, 30);
//   ... optimizer.step(); schedule.step();
//
// A checkpoint stores a schedule's state as words (metadata.h): its parameters, which must be the
// same when it is resumed, and its progress.
//
// Ownership: a schedule refers to its optimizer, which must outlive it. Thread safety: none.

#include <cstdint>
#include <limits>
#include <vector>

#include "paceline/training/optim/metadata.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  // "step", "multi_step", "cosine_annealing", "one_cycle" or "reduce_on_plateau".
  virtual const char* name() const = 0;
  const std::vector<double>& base_rates() const { return base_rates_; }

  Metadata state() const;
  // Throws Error(kInvalid), which lists the differences, when `state` is from a schedule with other
  // parameters: another kind, other options or other base rates.
  void require_compatible(const Metadata& state) const;
  // Calls require_compatible(), then continues from `state` and sets the learning rates that belong
  // to it.
  void set_state(const Metadata& state);

 protected:
  explicit LRScheduler(Optimizer& optimizer)
      : optimizer_(optimizer), base_rates_(optimizer.learning_rates()) {}

  Optimizer& optimizer() const { return optimizer_; }
  // Error(kInvalid) when groups were added to the optimizer after the schedule was constructed.
  void require_own_groups() const;
  // The options, which must be the same when the schedule is resumed.
  virtual Metadata options() const = 0;
  virtual Metadata progress() const = 0;
  virtual void set_progress(const Metadata& words) = 0;

 private:
  Metadata parameters() const;

  Optimizer& optimizer_;
  const std::vector<double> base_rates_;  // [group]
};

// A schedule whose rates are a function of the number of steps.
class StepCountScheduler : public LRScheduler {
 public:
  // Advances by one step. Call it after each step of the optimizer or once per epoch, depending on
  // which of the two the options count.
  void step();
  std::int64_t num_steps() const { return num_steps_; }

 protected:
  using LRScheduler::LRScheduler;

  virtual double rate(std::size_t group, std::int64_t step) const = 0;
  // Sets the rates for step num_steps(). Constructors call it last.
  virtual void apply();

 private:
  Metadata progress() const override;
  void set_progress(const Metadata& words) override;

  std::int64_t num_steps_ = 0;
};

// The constructors of schedules throw Error(kInvalid) for options that are out of range.

// rate = base x gamma^(steps / step_size), with an integer division:
// torch.optim.lr_scheduler.StepLR.
class StepLR final : public StepCountScheduler {
 public:
  StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);
  const char* name() const override { return "step"; }

 private:
  double rate(std::size_t group, std::int64_t step) const override;
  Metadata options() const override;

  const std::int64_t step_size_;
  const double gamma_;
};

// rate = base x gamma^(milestones reached): torch.optim.lr_scheduler.MultiStepLR.
class MultiStepLR final : public StepCountScheduler {
 public:
  // `milestones`: in any order; a repeated one counts twice.
  MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma = 0.1);
  const char* name() const override { return "multi_step"; }

 private:
  double rate(std::size_t group, std::int64_t step) const override;
  Metadata options() const override;

  std::vector<std::int64_t> milestones_;
  const double gamma_;
};

struct CosineAnnealingLROptions {
  std::int64_t T_max = 1;  // steps from the base rate to eta_min; afterwards the rate rises again
  double eta_min = 0;
  std::int64_t warmup_steps = 0;  // the first steps, in which the rate rises to the base rate
  double warmup_start_factor = 1.0 / 3;
};

// eta_min + (base - eta_min) x (1 + cos(pi x t / T_max)) / 2, with t counted from the end of the
// warm-up: CosineAnnealingLR or, with a warm-up, a SequentialLR of LinearLR and CosineAnnealingLR.
class CosineAnnealingLR final : public StepCountScheduler {
 public:
  CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);
  const char* name() const override { return "cosine_annealing"; }

 private:
  double rate(std::size_t group, std::int64_t step) const override;
  Metadata options() const override;

  const CosineAnnealingLROptions options_;
};

struct OneCycleLROptions {
  // The shape of the curve between two rates.
  enum class AnnealStrategy : std::uint8_t { kCosine, kLinear };

  std::vector<double> max_lr;    // one value for all groups, or one for each group
  std::int64_t total_steps = 0;  // steps of the whole training
  double pct_start = 0.3;        // the share of the steps in which the rate rises
  AnnealStrategy anneal_strategy = AnnealStrategy::kCosine;
  bool cycle_momentum = true;  // also changes the momentum (beta1 of Adam and similar optimizers)
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         // the first rate is max_lr / div_factor
  double final_div_factor = 1e4;  // the last rate is the first rate divided by this factor
  bool three_phase = false;       // the rate first falls as it rose, and then to the last rate
};

// One cycle (Smith and Topin, 2018), as torch.optim.lr_scheduler.OneCycleLR computes it: the rate
// rises to max_lr and falls far below its first value, while the momentum does the opposite. The
// optimizer's own rates have no effect. step() may be called after each of the `total_steps`; after
// the last one the rate stays constant, whereas PyTorch's continues the curve. Error(kInvalid) for
// a step after `total_steps`, for options that are out of range, and for cycle_momentum if a group
// has no momentum.
class OneCycleLR final : public StepCountScheduler {
 public:
  OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options);
  const char* name() const override { return "one_cycle"; }

 private:
  // A phase lasts until the step `end`, which need not be a whole number.
  struct Phase {
    double end;
    double first_rate, last_rate;  // for a max_lr of 1
    double first_momentum, last_momentum;
  };

  std::vector<Phase> phases() const;
  double between(double first, double last, double share) const;
  double rate(std::size_t group, std::int64_t step) const override;
  void apply() override;
  Metadata options() const override;

  OneCycleLROptions options_;
};

struct ReduceLROnPlateauOptions {
  enum class Mode : std::uint8_t { kMin, kMax };  // which values of the metric are better
  enum class ThresholdMode : std::uint8_t { kRelative, kAbsolute };

  Mode mode = Mode::kMin;
  double factor = 0.1;
  std::int64_t patience = 10;  // this many steps without improvement are accepted
  double threshold = 1e-4;     // a smaller improvement does not count as one
  ThresholdMode threshold_mode = ThresholdMode::kRelative;
  std::int64_t cooldown = 0;  // steps after a reduction that do not count towards `patience`
  double min_lr = 0;
  double eps = 1e-8;  // a change of a rate by at most this is skipped
};

// Lowers the rates when a metric has stopped improving, as
// torch.optim.lr_scheduler.ReduceLROnPlateau does.
class ReduceLROnPlateau final : public LRScheduler {
 public:
  // Error(kInvalid) for a factor outside (0, 1) and for negative numbers.
  ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options);
  const char* name() const override { return "reduce_on_plateau"; }

  // Takes the metric of an evaluation into account; call it after each evaluation. All ranks must
  // pass the same metric, as train::evaluate() returns it.
  void step(double metric);

 private:
  bool is_better(double metric) const;
  void reduce();
  Metadata options() const override;
  Metadata progress() const override;
  void set_progress(const Metadata& words) override;

  const ReduceLROnPlateauOptions options_;
  double best_;
  std::int64_t num_bad_ = 0;  // consecutive steps without improvement
  std::int64_t cooldown_left_ = 0;
};

}  // namespace paceline::optim
