#pragma once

// Batches of samples that are alike: of similar length, so that little is padded, or of one aspect
// ratio.
//
//   const auto groups = data::groups_by_bounds(lengths, {16, 32, 64, 128});
//   data::DataLoader loader(dataset, sampler, {.batch_size = 32, .groups = groups});
//
// The definition is that of GroupedBatchSampler in torchvision's detection reference, over the
// order of all ranks together. So batches do not depend on the number of ranks, which take them in
// turn, and any number of ranks can continue an epoch. Pure.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace paceline::data {

// A number for each sample of a data set; samples with the same number may share a batch. Shared by
// the loaders that use it.
using Groups = std::shared_ptr<const std::vector<std::int64_t>>;

// Group of each value: how many of `bounds` (ascending) it has reached, as bisect.bisect_right.
Groups groups_by_bounds(std::span<const std::int64_t> values,
                        const std::vector<std::int64_t>& bounds);

// `order`, the samples of an epoch, as batches one after the other: a batch follows as soon as one
// group has `batch_size` samples. There are order.size() / batch_size batches: at the end the
// fullest of the groups that are left are filled up with their own samples, from the first on, and
// the rest is left out. Requires: a group for every sample.
std::vector<std::int64_t> grouped_order(std::span<const std::int64_t> order,
                                        const std::vector<std::int64_t>& groups,
                                        std::int64_t batch_size);

}  // namespace paceline::data
