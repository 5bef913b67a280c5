#include "paceline/engine/core/logical_shards.h"

#include <bit>
#include <cstdlib>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"

namespace paceline {

std::int64_t detail::job_logical_shards() {
  const char* const value = std::getenv("PACELINE_LOGICAL_SHARDS");
  if (value == nullptr || *value == '\0') return 0;
  const auto shards = parse_number<std::int64_t>(value, 0, kMaxLogicalShards);
  check(shards.has_value(),
        "PACELINE_LOGICAL_SHARDS={}: must be a number of shards from 0 (none) to {}", value,
        kMaxLogicalShards);
  return *shards;
}

bool shards_fit(std::int64_t num_shards, std::int64_t num_ranks) {
  if (num_ranks < 1 || num_shards % num_ranks != 0) return false;
  return num_ranks == 1 || std::has_single_bit(static_cast<std::uint64_t>(num_shards / num_ranks));
}

std::string ranks_that_fit(std::int64_t num_shards) {
  std::vector<std::int64_t> fitting;
  for (std::int64_t ranks = num_shards; shards_fit(num_shards, ranks); ranks /= 2) {
    fitting.push_back(ranks);
    if (ranks % 2 != 0) break;
  }
  if (fitting.back() != 1) fitting.push_back(1);
  std::string text;
  for (std::size_t i = fitting.size(); i-- > 0;) {
    text += std::to_string(fitting[i]);
    if (i > 0) text += i == 1 ? " or " : ", ";
  }
  return text;
}

ShardBlock shards_of(std::int64_t num_shards, int num_ranks, int rank) {
  check(num_shards > 0, "rank {}: {} logical shards: there must be at least 1", rank, num_shards);
  check(shards_fit(num_shards, num_ranks),
        "rank {}: {} logical shards cannot be divided among {} ranks with bit-identical results: "
        "each rank must have 1, 2, 4, 8, ... of them. Start {} ranks, or choose another number of "
        "shards",
        rank, num_shards, num_ranks, ranks_that_fit(num_shards));
  const std::int64_t count = num_shards / num_ranks;
  return {rank * count, count};
}

std::uint64_t seed_of_shard(std::uint64_t seed, std::int64_t epoch, std::int64_t position,
                            std::int64_t shard) {
  std::uint64_t state = seed;
  for (const std::int64_t value : {std::int64_t{0}, epoch, position, shard}) {
    state = mixed(state + static_cast<std::uint64_t>(value));
  }
  return state;
}

}  // namespace paceline
