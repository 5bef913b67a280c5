#pragma once

// The job's number of logical shards (docs/data_parallel.md). Thread safety: any thread may call.

#include <cstdint>

namespace paceline::detail {

// The value of `paceline run --logical-shards`, which reaches the ranks as PACELINE_LOGICAL_SHARDS;
// 0 if that variable is not set or empty. Throws Error(kInvalid) unless the value is a number from
// 0 to kMaxLogicalShards.
std::int64_t job_logical_shards();

}  // namespace paceline::detail
