#pragma once

// Turns samples or a stream into the batches of a rank: plans, which are pure functions, and the
// sources that a DataLoader takes its batches from.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/data/data_loader.h"

namespace paceline::data {

struct PlannedBatch {
  std::vector<std::int64_t> indices;
  double weight = 1;      // factor for the mean over its samples
  bool ends_step = true;  // false: another batch of the same step follows
  // Samples of the epoch that all ranks have taken after its step, with the sampler's padding.
  std::int64_t consumed = 0;
  std::int64_t position = 0;  // samples of the epoch before its step
  std::int64_t shard = -1;    // the number of its logical shard; -1: there are none
};

struct BatchSplit {
  std::int64_t size = 32;       // samples of a batch of this rank, or of a step of all ranks
  std::int64_t micro_size = 0;  // most samples of a rank at once; 0: any number
  bool drop_last = false;       // leave out a last batch or step that is not full
  int num_ranks = 1;
  int rank = 0;
  std::int64_t num_shards = 0;  // logical shards of a global step; 0: none
};

// Every batch has `size` samples on every rank. `indices`: this rank's samples after `consumed`
// samples of all ranks.
std::vector<PlannedBatch> plan_batches(const std::vector<std::int64_t>& indices,
                                       std::int64_t consumed, const BatchSplit& split);
// `order` is the whole epoch's, in batches of `size` that belong together, of which each rank takes
// one in turn. If their number does not divide by the ranks, the first ones are taken again, or the
// last ones left out. Error(kInvalid) when `consumed` is in the middle of a batch.
std::vector<PlannedBatch> plan_whole_batches(const std::vector<std::int64_t>& order,
                                             std::int64_t consumed, const BatchSplit& split);
// A step takes `size` consecutive samples of the epoch's `order`, for any number of ranks. The
// ranks take turns, so their shares differ by at most one sample; a share above micro_size is
// several batches of the same step, whose gradients add up. The last step takes the rest. A batch's
// weight is (its samples x ranks) / (samples of the step): with it, the average over ranks of the
// sums over batches is the mean over the step's samples. A rank without a share, at the end of an
// epoch, takes a sample with the weight 0.
//
// In logical shards (engine/core/logical_shards.h) every shard takes the place of a rank, so that
// the samples computed together do not depend on the number of ranks. Error(kInvalid) when the
// ranks do not fit the shards.
std::vector<PlannedBatch> plan_global_batches(const std::vector<std::int64_t>& order,
                                              std::int64_t consumed, const BatchSplit& split);

// A batch before its tensors are made.
struct Draft {
  PlannedBatch plan;                    // here `consumed` is without padding
  std::vector<StreamedRecord> records;  // of a stream
  std::int64_t epoch = 0;
  bool ends_epoch = false;
};

// Fixed properties of a source.
struct SourceTraits {
  std::string name;         // of the data
  std::optional<int> rank;  // none: the source has exactly the given samples, on any rank
  std::uint64_t seed = 0;
  bool shuffles = false;
  bool is_streamed = false;
  std::int64_t logical_shards = 0;  // of a step; 0: none
};

// The source of a DataLoader's batches: the samples of a Dataset, planned for a whole epoch, or the
// records of a StreamedDataset, read as they are needed.
//
// Thread safety: one thread at a time, but tensors() by any thread.
class BatchSource {
 public:
  explicit BatchSource(SourceTraits traits) : traits_(std::move(traits)) {}
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  const SourceTraits& traits() const { return traits_; }
  // Continues after `consumed` samples of the epoch; false when none are left.
  virtual bool begin(std::int64_t epoch, std::int64_t consumed) = 0;
  // The next batch; nothing after the last one.
  virtual std::optional<Draft> next() = 0;
  virtual std::vector<at::Tensor> tensors(const Draft& draft) const = 0;
  // The number of batches in a whole epoch; the batches of one step count once. 0: unknown.
  virtual std::int64_t num_batches() const = 0;

 private:
  const SourceTraits traits_;
};

// Sources for samples of a sampler, for exactly these samples, and for a stream. Errors: those of
// DataLoader's constructors.
std::unique_ptr<BatchSource> make_source(const std::shared_ptr<const Dataset>& dataset,
                                         const DistributedSampler& sampler,
                                         const DataLoaderOptions& options);
std::unique_ptr<BatchSource> make_source(const std::shared_ptr<const Dataset>& dataset,
                                         std::vector<std::int64_t> indices,
                                         const DataLoaderOptions& options);
std::unique_ptr<BatchSource> make_source(std::shared_ptr<const StreamedDataset> stream,
                                         const StreamShare& share,
                                         const DataLoaderOptions& options);

}  // namespace paceline::data
