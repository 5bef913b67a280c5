#pragma once

// The blocks of a transformer that a stage of a pipeline has. A value.

#include <cstdint>

namespace paceline::models {

// Blocks [begin, end).
struct BlockRange {
  std::int64_t begin = 0, end = 0;

  // Returns the blocks of a stage of a pipeline; the numbers of blocks of two stages differ by at
  // most one. Error(kInvalid) when there are more stages than blocks.
  static BlockRange of_stage(std::int64_t num_blocks, int stage, int num_stages);
};

}  // namespace paceline::models
