#pragma once

// The job's number of logical shards (docs/data_parallel.md).

#include <cstdint>

namespace paceline::detail {

// The value of `paceline run --logical-shards`, which reaches the ranks as PACELINE_LOGICAL_SHARDS;
// 0 when that is not set. Throws Error(kInvalid) unless it is a number from 0 to kMaxLogicalShards.
// Thread safety: any thread may call it.
std::int64_t job_logical_shards();

}  // namespace paceline::detail
