#pragma once

// Logical shards: the parts into which the batch of every step is divided, whatever the number of
// ranks.
//
// Each rank computes the shards of an aligned block, one after the other, and adds up their
// gradients in the same order in which the engine adds up the gradients of ranks
// (engine/collectives/kernels/reduce.h). So the sum over all shards, and with it the model, has the
// same bits for every number of ranks that fits. A number fits if each rank gets 2^k shards,
// because only such a block is a subtree of the summation tree; one rank alone always fits.
//
// Thread safety: pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/core/job_logical_shards.h"

namespace paceline {

using detail::job_logical_shards;
inline constexpr std::int64_t kMaxLogicalShards = 1 << 20;

// Whether `num_shards` shards can be divided among `num_ranks` ranks.
bool shards_fit(std::int64_t num_shards, std::int64_t num_ranks);
// All numbers of ranks that fit, from 1 on, as text: "1, 2, 4 or 8". Requires: num_shards > 0.
std::string ranks_that_fit(std::int64_t num_shards);

// The shards that one rank computes in each step.
struct ShardBlock {
  std::int64_t first = 0;
  std::int64_t count = 1;
};
// Throws Error(kInvalid), naming the numbers of ranks that fit, when `num_ranks` does not fit.
ShardBlock shards_of(std::int64_t num_shards, int num_ranks, int rank);

// The mixing function of SplitMix64 (Steele, Lea and Flood, 2014): neighbouring inputs give
// unrelated outputs. To generate random numbers, add kMixStep to the input after each call.
inline constexpr std::uint64_t kMixStep = 0x9e3779b97f4a7c15;
constexpr std::uint64_t mixed(std::uint64_t value) {
  value += kMixStep;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// The seed for the randomness within one shard of one step (dropout), different for each shard of
// the run. `position` is the number of samples of the epoch before the step.
std::uint64_t seed_of_shard(std::uint64_t seed, std::int64_t epoch, std::int64_t position,
                            std::int64_t shard);

}  // namespace paceline
