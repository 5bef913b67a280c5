#pragma once

// Divides samples or a stream into the batches of a rank: functions that plan batches, all of them
// pure, and the sources from which a DataLoader takes its batches.

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
  std::vector<std::int64_t> indices;  // the samples of the batch
  double weight = 1;      // factor for the loss, which is a mean over the batch's samples
  bool ends_step = true;  // false: another batch of the same step follows
  // The number of samples of the epoch that all ranks together have consumed after this batch's
  // step, including the sampler's padding.
  std::int64_t consumed = 0;
  // The number of samples of the epoch before this batch's step. Only plan_global_batches() and the
  // source of a stream set it.
  std::int64_t position = 0;
  std::int64_t shard = -1;  // number of the batch's logical shard; -1: no logical shards
};

// How samples are divided into batches.
struct BatchSplit {
  // plan_global_batches(): the samples of a step, of all ranks together; otherwise: the samples of
  // a batch.
  std::int64_t size = 32;
  // Only plan_global_batches(): the most samples that a rank computes at once; 0: no limit.
  std::int64_t micro_size = 0;
  bool drop_last = false;  // leave out an incomplete last batch or step
  int num_ranks = 1;
  int rank = 0;
  std::int64_t num_shards = 0;  // logical shards of a global step; 0: no logical shards
};

// Plans batches of `size` samples from this rank's samples, `indices`. `consumed`: the number of
// samples that all ranks together have consumed before.
std::vector<PlannedBatch> plan_batches(const std::vector<std::int64_t>& indices,
                                       std::int64_t consumed, const BatchSplit& split);
// Plans batches, each with samples of one group (grouped_order()). `order` has the samples of the
// whole epoch, in consecutive batches of `size` samples. The ranks take these batches in turn. If
// the number of ranks does not divide the number of batches, the first batches are repeated or,
// with drop_last, the last ones are left out. Error(kInvalid) if `consumed` is in the middle of a
// batch.
std::vector<PlannedBatch> plan_whole_batches(const std::vector<std::int64_t>& order,
                                             std::int64_t consumed, const BatchSplit& split);
// Plans steps, each of `size` consecutive samples of the epoch's `order`, for any number of ranks.
// The ranks take the samples of a step in turn, so their shares differ by at most one sample. A
// share of more than micro_size samples becomes several batches of the same step, whose gradients
// add up. The last step has the remaining samples or, with drop_last, is left out. If a rank has no
// share of a step, it takes one sample with the weight 0.
//
// A batch's weight is (its samples x ranks) / (samples of the step). Each rank adds up the weighted
// losses of its batches; the average over the ranks is then the mean over the step's samples.
//
// With logical shards (engine/core/logical_shards.h), the shards take the samples in turn instead
// of the ranks, and a rank computes the batches of its shards: which samples are computed together
// does not depend on the number of ranks. Error(kInvalid) if the shards cannot be divided among the
// ranks.
std::vector<PlannedBatch> plan_global_batches(const std::vector<std::int64_t>& order,
                                              std::int64_t consumed, const BatchSplit& split);

// A planned batch whose tensors have not been made yet.
struct Draft {
  PlannedBatch plan;                             // its `consumed` does not count padding
  std::vector<StreamedDataset::Record> records;  // for a stream: the records of the batch
  std::int64_t epoch = 0;
  bool ends_epoch = false;  // true: no batch of the epoch follows
};

// Fixed properties of a source.
struct SourceTraits {
  std::string name;  // name of the data
  // Describes the order of an epoch's samples (DataLoader::order()); empty if unknown.
  std::string order = {};
  std::optional<int> rank;  // nullopt: the samples were given; they are not divided among ranks
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
  // Begins an epoch after its first `consumed` samples, or, if the samples were given, always at
  // the first one. Returns false if no samples are left.
  virtual bool begin(std::int64_t epoch, std::int64_t consumed) = 0;
  // Returns the next batch; nullopt after the last one.
  virtual std::optional<Draft> next() = 0;
  // Makes the tensors of a batch.
  virtual std::vector<at::Tensor> tensors(const Draft& draft) const = 0;
  // The number of this rank's batches in a whole epoch, where several batches of one step count as
  // one; 0: unknown.
  virtual std::int64_t num_batches() const = 0;

 private:
  const SourceTraits traits_;
};

// The share of a stream's records that a rank takes: every num_ranks-th record of each step or,
// with logical shards, the records of the rank's shards.
struct StreamShare {
  int num_ranks = 1;
  int rank = 0;
  std::uint64_t seed = 0;  // for the random numbers of logical shards
};

// Make a source for the samples of a sampler, for the given samples (`indices`), or for a stream.
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

// Rearranges `order`, the samples of an epoch, into consecutive batches of samples of the same
// group (DataLoaderOptions::groups). Takes the samples in their order, and makes a batch as soon as
// a group has `batch_size` samples. The result has order.size() / batch_size batches: at the end,
// the groups with the most remaining samples are filled up by repeating their own samples, from the
// first one on, and the other remaining samples are left out. Requires: `groups` has the group of
// every sample.
std::vector<std::int64_t> grouped_order(std::span<const std::int64_t> order,
                                        const std::vector<std::int64_t>& groups,
                                        std::int64_t batch_size);

}  // namespace paceline::data
