#pragma once

// Where a DataLoader's batches come from: the samples of a Dataset, planned for a whole epoch, or
// the records of a StreamedDataset, read as they are needed.
//
// Thread safety: one thread at a time, but tensors() by any thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/data/batch_plan.h"
#include "paceline/training/data/data_loader.h"

namespace paceline::data {

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
