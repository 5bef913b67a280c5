#pragma once

// What a finished run tells: throughput, where the time went, and which rank was slowest.

#include <cstdint>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/training/train/sample_unit.h"

namespace paceline::train {

struct RunReport {
  double seconds = 0;  // of training, evaluation and checkpoints left out
  std::int64_t steps = 0;
  std::int64_t samples = 0;  // of all ranks
  double samples_per_second = 0;
  SampleUnit unit;
  PhaseTimes mean;        // over the ranks
  int slowest_rank = 0;   // the one that computed longest
  double slowest_by = 0;  // seconds above the mean
  // Of all ranks, operations a second; 0: the unit tells no operations.
  double matrix_speed = 0;

  double units_per_second() const {
    return samples_per_second * static_cast<double>(unit.per_sample);
  }
  // The share of the speed of matrix products that training reached.
  double matrix_share() const {
    return matrix_speed > 0 ? samples_per_second * unit.operations_per_sample / matrix_speed : 0;
  }
  // The closing table's rows.
  std::string table() const;
};

// Collective. `samples`: of all ranks, the same on every rank. Measures the speed of matrix
// products where `unit` tells operations.
RunReport make_report(ProcessGroup& group, const PhaseTimes& times, double seconds,
                      std::int64_t steps, std::int64_t samples, const SampleUnit& unit = {});

}  // namespace paceline::train
