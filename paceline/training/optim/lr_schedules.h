#pragma once

// Schedules by the number of steps (schedule.h): StepLr, MultiStepLr, CosineAnnealingLr. Errors:
// kInvalid for options out of range.

#include <cstdint>
#include <vector>

#include "paceline/training/optim/schedule.h"

namespace paceline::optim {

struct StepLrOptions {
  std::int64_t step_size = 1;
  double gamma = 0.1;
};

// base x gamma^(steps / step_size): torch.optim.lr_scheduler.StepLR.
class StepLr final : public LrSchedule {
 public:
  StepLr(Optimizer& optimizer, const StepLrOptions& options);
  const char* name() const override { return "step"; }

 private:
  double rate(std::size_t group, std::int64_t step) const override;
  Words options() const override;

  const StepLrOptions options_;
};

struct MultiStepLrOptions {
  std::vector<std::int64_t> milestones;  // in any order; one given twice counts twice
  double gamma = 0.1;
};

// base x gamma^(milestones reached): MultiStepLR.
class MultiStepLr final : public LrSchedule {
 public:
  MultiStepLr(Optimizer& optimizer, const MultiStepLrOptions& options);
  const char* name() const override { return "multi_step"; }

 private:
  double rate(std::size_t group, std::int64_t step) const override;
  Words options() const override;

  MultiStepLrOptions options_;
};

struct CosineAnnealingLrOptions {
  std::int64_t t_max = 1;  // steps from the base rate to eta_min; then it rises again
  double eta_min = 0;
  std::int64_t warmup_steps = 0;  // before them, linearly up to the base rate
  double warmup_start_factor = 1.0 / 3;
};

// eta_min + (base - eta_min) x (1 + cos(pi x t / t_max)) / 2, with t counted from the end of the
// warm-up: CosineAnnealingLR, after LinearLR in a SequentialLR when there is a warm-up.
class CosineAnnealingLr final : public LrSchedule {
 public:
  CosineAnnealingLr(Optimizer& optimizer, const CosineAnnealingLrOptions& options);
  const char* name() const override { return "cosine_annealing"; }

 private:
  double rate(std::size_t group, std::int64_t step) const override;
  Words options() const override;

  const CosineAnnealingLrOptions options_;
};

}  // namespace paceline::optim
