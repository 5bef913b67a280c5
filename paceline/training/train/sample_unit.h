#pragma once

// The unit of a run's throughput.
//
// Thread safety: a value.

#include <cstdint>
#include <string>

namespace paceline::train {

// The unit in which a run reports its throughput: samples, or the elements of a sample. A plain
// value.
struct SampleUnit {
  std::string name = "samples";  // or "tokens"
  std::int64_t per_sample = 1;   // the number of units in a sample
  // Floating-point operations of the forward and backward pass of one sample; 0: unknown. If they
  // are known, the report compares the run with the speed of matrix products
  // (measure_matrix_speed()).
  double operations_per_sample = 0;
};

}  // namespace paceline::train
