#pragma once

// Turns samples or a stream into the batches of a rank: plans, which are pure functions, and the
// sources from which a DataLoader takes its batches.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/data/data_loader.h"

namespace paceline::data {

struct PlannedBatch {
  std::vector<std::int64_t> indices;
  double weight = 1;      // factor for the loss, which is a mean over the batch's samples
  bool ends_step = true;  // false: another batch of the same step follows
  // Samples of the epoch that all ranks have consumed after this batch's step, including the
  // sampler's padding.
  std::int64_t consumed = 0;
  std::int64_t position = 0;  // samples of the epoch before this batch's step
  std::int64_t shard = -1;    // number of the batch's logical shard; -1: no logical shards
};

struct BatchSplit {
  std::int64_t size = 32;  // samples of a batch of this rank, or of a step of all ranks together
  std::int64_t micro_size = 0;  // the most samples that a rank computes at once; 0: no limit
  bool drop_last = false;       // leave out an incomplete last batch or step
  int num_ranks = 1;
  int rank = 0;
  std::int64_t num_shards = 0;  // logical shards of a global step; 0: no logical shards
};

// Plans batches that have `size` samples on every rank. `indices` has this rank's samples after the
// `consumed` samples of all ranks.
std::vector<PlannedBatch> plan_batches(const std::vector<std::int64_t>& indices,
                                       std::int64_t consumed, const BatchSplit& split);
// `order` has the samples of the whole epoch, in batches of `size` that belong together. The ranks
// take these batches in turn. If the number of ranks does not divide the number of batches, the
// first batches are repeated, or the last ones left out. Error(kInvalid) when `consumed` is in the
// middle of a batch.
std::vector<PlannedBatch> plan_whole_batches(const std::vector<std::int64_t>& order,
                                             std::int64_t consumed, const BatchSplit& split);
// Plans steps of `size` consecutive samples of the epoch's `order`, for any number of ranks. The
// ranks take samples in turn, so their shares differ by at most one sample; a share of more than
// micro_size samples becomes several batches of the same step, whose gradients add up. The last
// step takes the remaining samples. A batch's weight is (its samples x ranks) / (samples of the
// step): with it, the average over ranks of the sums over batches is the mean over the step's
// samples. At the end of an epoch, a rank without a share takes one sample with the weight 0.
//
// With logical shards (engine/core/logical_shards.h) the shards, not the ranks, take samples in
// turn, so that the samples computed together do not depend on the number of ranks. Error(kInvalid)
// when the number of ranks does not divide the shards.
std::vector<PlannedBatch> plan_global_batches(const std::vector<std::int64_t>& order,
                                              std::int64_t consumed, const BatchSplit& split);

// A planned batch whose tensors have not been made yet.
struct Draft {
  PlannedBatch plan;                             // its `consumed` does not count padding
  std::vector<StreamedDataset::Record> records;  // for a stream: the records of the batch
  std::int64_t epoch = 0;
  bool ends_epoch = false;
};

// Fixed properties of a source.
struct SourceTraits {
  std::string name;         // name of the data
  std::optional<int> rank;  // nullopt: the source has exactly the given samples, on any rank
  std::uint64_t seed = 0;
  bool shuffles = false;
  bool is_streamed = false;
  std::int64_t logical_shards = 0;  // logical shards of a step; 0: no logical shards
};

// The source of a DataLoader's batches: either the samples of a Dataset, planned for a whole epoch,
// or the records of a StreamedDataset, read as they are needed.
//
// Thread safety: one thread at a time, except for tensors(), which any thread may call.
class BatchSource {
 public:
  explicit BatchSource(SourceTraits traits) : traits_(std::move(traits)) {}
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  const SourceTraits& traits() const { return traits_; }
  // Continues after `consumed` samples of the epoch; returns false if no samples are left.
  virtual bool begin(std::int64_t epoch, std::int64_t consumed) = 0;
  // Returns the next batch; nullopt after the last one.
  virtual std::optional<Draft> next() = 0;
  virtual std::vector<at::Tensor> tensors(const Draft& draft) const = 0;
  // The number of batches in a whole epoch; the batches of one step count once. 0: unknown.
  virtual std::int64_t num_batches() const = 0;

 private:
  const SourceTraits traits_;
};

// The part of a stream's records that a rank takes: every num_ranks-th record of each step.
struct StreamShare {
  int num_ranks = 1;
  int rank = 0;
  std::uint64_t seed = 0;  // for the random numbers of logical shards
};

// Make sources for the samples of a sampler, for exactly the given samples, and for a stream.
// Errors: those of DataLoader's constructors.
std::unique_ptr<BatchSource> make_source(const std::shared_ptr<const Dataset>& dataset,
                                         const DistributedSampler& sampler,
                                         const DataLoaderOptions& options);
std::unique_ptr<BatchSource> make_source(const std::shared_ptr<const Dataset>& dataset,
                                         std::vector<std::int64_t> indices,
                                         const DataLoaderOptions& options);
std::unique_ptr<BatchSource> make_source(std::shared_ptr<const StreamedDataset> stream,
                                         const StreamShare& share,
                                         const DataLoaderOptions& options);

// The order of samples whose batches have one group each (DataLoaderOptions::groups). Rearranges
// `order`, the samples of an epoch, into consecutive batches: a group makes a batch as
// soon as it has `batch_size` samples. There are order.size() / batch_size batches: at the end, the
// fullest of the remaining groups are filled up by repeating their own samples from the first one
// on, and the other groups are left out. Requires: a group for every sample.
std::vector<std::int64_t> grouped_order(std::span<const std::int64_t> order,
                                        const std::vector<std::int64_t>& groups,
                                        std::int64_t batch_size);

}  // namespace paceline::data
