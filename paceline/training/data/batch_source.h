#pragma once

// Which samples a rank takes in the batches of what is left of an epoch. Pure.
//
// By rank: every batch has the same size on every rank; the world's grows with the ranks.
//
// Global: a step takes `size` consecutive samples of the epoch's order, whatever the number of
// ranks. The ranks take turns at them, so that their shares differ by one sample at most; a share
// above micro_size comes in several batches of the same step, whose gradients add up. The last step
// takes what is left. A batch's weight is (its samples x ranks) / (samples of the step): with it,
// the average over ranks of the sums over batches is the mean over the step's samples. A rank
// without a share, at the end of an epoch, takes a sample all the same, with the weight 0.
//
// Whole: the order comes in batches of `size` that belong together, of which each rank takes one in
// turn. Where the ranks do not divide them, the first ones are taken again, or the last ones are
// left out.
//
// In logical shards (engine/core/logical_shards.h): the same, with a batch for every shard in the
// place of every rank, so that what is computed together does not depend on the number of ranks.

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
  double weight = 1;          // of the mean over its samples
  bool ends_step = true;      // false: another batch of the same step follows
  std::int64_t consumed = 0;  // samples of the epoch that all ranks have taken after its step,
                              // the sampler's padding included
  std::int64_t position = 0;  // samples of the epoch before its step
  std::int64_t shard = -1;    // the logical shard that it is; -1: there are none
};

struct BatchSplit {
  std::int64_t size = 32;       // of a batch of this rank, or of a step of all ranks
  std::int64_t micro_size = 0;  // at most so many samples of a rank at once; 0: any number
  bool drop_last = false;       // leave out what does not fill the size
  int num_ranks = 1;
  int rank = 0;
  std::int64_t num_shards = 0;  // logical shards of a global step; 0: none
};

// `indices`: this rank's samples after `consumed` ones of all ranks.
std::vector<PlannedBatch> plan_batches(const std::vector<std::int64_t>& indices,
                                       std::int64_t consumed, const BatchSplit& split);
// `order`: the whole epoch's, in batches. Error(kInvalid) when `consumed` is in the middle of one.
std::vector<PlannedBatch> plan_whole_batches(const std::vector<std::int64_t>& order,
                                             std::int64_t consumed, const BatchSplit& split);
// `order`: the whole epoch's, the same on every rank. Error(kInvalid) when the ranks do not fit the
// shards.
std::vector<PlannedBatch> plan_global_batches(const std::vector<std::int64_t>& order,
                                              std::int64_t consumed, const BatchSplit& split);

// Where a DataLoader's batches come from: the samples of a Dataset, planned for a whole epoch, or
// the records of a StreamedDataset, read as they are needed.
//
// Thread safety: one thread at a time, but tensors() by any thread.

// A batch before its tensors are made.
struct Draft {
  PlannedBatch plan;                    // its `consumed` without padding
  std::vector<StreamedRecord> records;  // of a stream
  std::int64_t epoch = 0;
  bool ends_epoch = false;
};

// What a loader asks of any source; fixed.
struct SourceTraits {
  std::string name;         // of the data
  std::optional<int> rank;  // none: exactly the given samples, whoever takes them
  std::uint64_t seed = 0;
  bool shuffles = false;
  bool is_streamed = false;
  std::int64_t logical_shards = 0;  // of a step; 0: none
};

class BatchSource {
 public:
  explicit BatchSource(SourceTraits traits) : traits_(std::move(traits)) {}
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  const SourceTraits& traits() const { return traits_; }
  // Goes to where `consumed` samples of the epoch have been taken; false when none are left.
  virtual bool begin(std::int64_t epoch, std::int64_t consumed) = 0;
  // Nothing after the last one.
  virtual std::optional<Draft> next() = 0;
  virtual std::vector<at::Tensor> tensors(const Draft& draft) const = 0;
  // Of a whole epoch; those of one step count once. 0: not known.
  virtual std::int64_t num_batches() const = 0;

 private:
  const SourceTraits traits_;
};

// These check that the options and the data fit; errors as of DataLoader's constructors.
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
