#pragma once

// Lower rates when a metric has stopped improving, as torch.optim.lr_scheduler.ReduceLROnPlateau.

#include <cstdint>
#include <limits>

#include "paceline/training/optim/schedule.h"

namespace paceline::optim {

enum class MetricMode : std::uint8_t { kMin, kMax };  // which is better
enum class ThresholdMode : std::uint8_t { kRelative, kAbsolute };

struct ReduceLrOnPlateauOptions {
  MetricMode mode = MetricMode::kMin;
  double factor = 0.1;
  std::int64_t patience = 10;  // steps without improvement that are accepted
  double threshold = 1e-4;     // a smaller improvement is none
  ThresholdMode threshold_mode = ThresholdMode::kRelative;
  std::int64_t cooldown = 0;  // steps after a reduction that are not counted
  double min_lr = 0;
  double eps = 1e-8;  // a smaller change of a rate is not made
};

class ReduceLrOnPlateau final : public Schedule {
 public:
  // Error(kInvalid) for a factor outside (0, 1) and for negative numbers.
  ReduceLrOnPlateau(Optimizer& optimizer, const ReduceLrOnPlateauOptions& options);
  const char* name() const override { return "reduce_on_plateau"; }

  // After each evaluation. All ranks must give the same metric, as train::evaluate() returns it.
  void step(double metric);

 private:
  bool is_better(double metric) const;
  void reduce();
  Words options() const override;
  Words progress() const override;
  void set_progress(const Words& words) override;

  const ReduceLrOnPlateauOptions options_;
  double best_;
  std::int64_t num_bad_ = 0;  // steps in a row
  std::int64_t cooldown_left_ = 0;
};

}  // namespace paceline::optim
