#pragma once

// Logical shards: the parts into which every step's batch is divided, whatever the number of ranks.
//
// A rank computes the shards of an aligned block, one after the other, and adds up their gradients
// in the order in which the engine adds up the ranks' (engine/collectives/kernels/reduce.h). So the
// sum over all shards, and with it the model, has the same bits for every number of ranks that
// fits: each rank must have 2^k shards, because only such a block is a subtree of the sum; or one
// rank has them all.
//
// Thread safety: pure functions.

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

// `paceline run --logical-shards`, as it reaches the ranks: PACELINE_LOGICAL_SHARDS; 0 when it is
// not set. Error(kInvalid) unless it is a number from 0 to kMaxLogicalShards.
std::int64_t job_logical_shards();
inline constexpr std::int64_t kMaxLogicalShards = 1 << 20;

// Whether so many ranks can divide them.
bool shards_fit(std::int64_t num_shards, std::int64_t num_ranks);
// The numbers of ranks that can, from 1 on: "1, 2, 4 or 8".
std::string ranks_that_fit(std::int64_t num_shards);

// The shards that one rank computes in each step.
struct ShardBlock {
  std::int64_t first = 0;
  std::int64_t count = 1;
};
// Error(kInvalid) with the numbers of ranks that fit when `num_ranks` does not.
ShardBlock shards_of(std::int64_t num_shards, int num_ranks, int rank);

// SplitMix64 (Steele, Lea and Flood, 2014): neighbouring values become unlike ones. A generator of
// random numbers adds kMixStep to its state each time.
inline constexpr std::uint64_t kMixStep = 0x9e3779b97f4a7c15;
constexpr std::uint64_t mixed(std::uint64_t value) {
  value += kMixStep;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// The seed of what is random in a shard, and in nothing else of the run: dropout. `position`: the
// samples of the epoch before the step.
std::uint64_t seed_of_shard(std::uint64_t seed, std::int64_t epoch, std::int64_t position,
                            std::int64_t shard);

}  // namespace paceline
