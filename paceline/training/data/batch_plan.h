#pragma once

// Which samples a rank takes in the batches of what is left of an epoch. Pure.
//
// By rank: every batch has the same size on every rank; the world's grows with the ranks.
//
// Global: a step takes `size` consecutive samples of the epoch's order, whatever the number of
// ranks. The ranks take turns at them, so that their shares differ by one sample at most; a share
// above micro_size comes in several batches of the same step, whose gradients add up. The last step
// takes what is left. A batch's weight is (its samples x ranks) / (samples of the step): with it,
// the average over ranks of the sums over batches is the mean over the step's samples. A rank
// without a share, at the end of an epoch, takes a sample all the same, with the weight 0.
//
// Whole: the order comes in batches of `size` that belong together, of which each rank takes one in
// turn. Where the ranks do not divide them, the first ones are taken again, or the last ones are
// left out.
//
// In logical shards (engine/core/logical_shards.h): the same, with a batch for every shard in the
// place of every rank, so that what is computed together does not depend on the number of ranks.

#include <cstdint>
#include <vector>

namespace paceline::data {

struct PlannedBatch {
  std::vector<std::int64_t> indices;
  double weight = 1;          // of the mean over its samples
  bool ends_step = true;      // false: another batch of the same step follows
  std::int64_t consumed = 0;  // samples of the epoch that all ranks have taken after its step,
                              // the sampler's padding included
  std::int64_t position = 0;  // samples of the epoch before its step
  std::int64_t shard = -1;    // the logical shard that it is; -1: there are none
};

struct BatchSplit {
  std::int64_t size = 32;       // of a batch of this rank, or of a step of all ranks
  std::int64_t micro_size = 0;  // at most so many samples of a rank at once; 0: any number
  bool drop_last = false;       // leave out what does not fill the size
  int num_ranks = 1;
  int rank = 0;
  std::int64_t num_shards = 0;  // logical shards of a global step; 0: none
};

// `indices`: this rank's samples after `consumed` ones of all ranks.
std::vector<PlannedBatch> plan_batches(const std::vector<std::int64_t>& indices,
                                       std::int64_t consumed, const BatchSplit& split);
// `order`: the whole epoch's, in batches. Error(kInvalid) when `consumed` is in the middle of one.
std::vector<PlannedBatch> plan_whole_batches(const std::vector<std::int64_t>& order,
                                             std::int64_t consumed, const BatchSplit& split);
// `order`: the whole epoch's, the same on every rank. Error(kInvalid) when the ranks do not fit the
// shards.
std::vector<PlannedBatch> plan_global_batches(const std::vector<std::int64_t>& order,
                                              std::int64_t consumed, const BatchSplit& split);

}  // namespace paceline::data
