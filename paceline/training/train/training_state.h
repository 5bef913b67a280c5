#pragma once

// The progress of a training run. A plain value; a checkpoint contains it in addition to the
// tensors.

#include <cstdint>
#include <string>

namespace paceline::train {

struct TrainingState {
  std::int64_t epoch = 0;     // the current epoch, from 0
  std::int64_t step = 0;      // optimizer steps taken since the beginning
  std::int64_t consumed = 0;  // samples of the current epoch that all ranks together have consumed
  std::uint64_t seed = 0;     // seed of the sampler and the transforms
  std::string data = {};      // the program's description of the data set; empty: unknown
  std::int64_t logical_shards = 0;  // logical shards of each step; 0: no logical shards
  std::int64_t num_threads = 0;     // LibTorch's threads on every rank, if there are logical shards

  bool operator==(const TrainingState&) const = default;
};

}  // namespace paceline::train
