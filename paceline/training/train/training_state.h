#pragma once

// Where a training run stands. A value; what a checkpoint keeps beside the tensors.

#include <cstdint>
#include <string>

namespace paceline::train {

struct TrainingState {
  std::int64_t epoch = 0;     // the epoch under way, from 0
  std::int64_t step = 0;      // optimizer steps taken since the beginning
  std::int64_t consumed = 0;  // samples of the current epoch that all ranks together have consumed
  std::uint64_t seed = 0;     // of the sampler and the transforms
  std::string data;           // which data set, in the program's words; empty: not told
  std::int64_t logical_shards = 0;  // of each step; 0: none
  std::int64_t num_threads = 0;     // LibTorch's on every rank, where there are logical shards

  bool operator==(const TrainingState&) const = default;
};

}  // namespace paceline::train
