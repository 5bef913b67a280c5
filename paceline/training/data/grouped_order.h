#pragma once

// The order of samples whose batches have one group each (DataLoaderOptions::groups).
//
// Thread safety: a pure function.

#include <cstdint>
#include <span>
#include <vector>

namespace paceline::data {

// Rearranges `order`, the samples of an epoch, into consecutive batches: a group makes a batch as
// soon as it has `batch_size` samples. There are order.size() / batch_size batches: at the end, the
// fullest of the remaining groups are filled up by repeating their own samples from the first one
// on, and the other groups are left out. Requires: a group for every sample.
std::vector<std::int64_t> grouped_order(std::span<const std::int64_t> order,
                                        const std::vector<std::int64_t>& groups,
                                        std::int64_t batch_size);

}  // namespace paceline::data
