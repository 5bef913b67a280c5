#pragma once

// The unit in which a run reports its throughput: samples, or what a sample consists of. A value.

#include <cstdint>
#include <string>

namespace paceline::train {

struct SampleUnit {
  std::string name = "samples";  // or "tokens"
  std::int64_t per_sample = 1;   // how many of them a sample has
  // Floating-point operations of a sample's forward and backward pass; 0: not told. The report then
  // compares the run with the speed of matrix products (matrix_speed.h).
  double operations_per_sample = 0;
};

}  // namespace paceline::train
