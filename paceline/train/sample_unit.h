#pragma once

// The unit in which a run reports its throughput: samples, or what a sample consists of. A value.

#include <cstdint>
#include <string>

namespace paceline::train {

struct SampleUnit {
  std::string name = "samples";  // or "tokens"
  std::int64_t per_sample = 1;   // how many of them a sample has
};

}  // namespace paceline::train
