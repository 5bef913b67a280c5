#pragma once

// Data that is read from its beginning to its end, because its size is not known or its samples
// cannot be addressed: records, which a DataLoader deals out to the ranks and makes batches of.
//
//   data::DataLoader loader(stream, {.num_ranks = group->world_size(), .rank = group->rank()},
//                           {.batch_size = 32, .num_threads = 2});
//
// Every rank reads all records, in the same order, and keeps its own: finding a record must be
// cheap, and making tensors of it, which each rank's threads do for its own ones only, may be
// expensive. So nothing depends on the number of ranks but who takes which record, and a position
// is one number: any number of ranks can continue an epoch in its middle.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::data {

struct StreamedRecord {
  std::string bytes;
  std::shared_ptr<const std::string> file;  // where it is from; null: not told
  std::int64_t line = 0;                    // and at which line of it, from 1; 0: not told
  std::int64_t number = 0;                  // in the epoch's order, from 0; a DataLoader sets it
};

// Thread safety: none.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // Nothing at the end.
  virtual std::optional<StreamedRecord> next() = 0;
  // Leaves out `count` records, or what is left; how many those were.
  virtual std::int64_t skip(std::int64_t count);
};

class StreamedDataset {
 public:
  virtual ~StreamedDataset() = default;
  virtual std::string name() const = 0;  // as messages call it
  // The records of an epoch, the same on every rank. What is random about their order depends on
  // `epoch` and the stream's own seed alone.
  virtual std::unique_ptr<RecordReader> read(std::int64_t epoch) const = 0;
  // These records as tensors whose dim 0 they are, as Dataset::batch(). What is random about a
  // sample depends on `epoch`, the record's number and the stream's own seed alone. Thread safety:
  // called by several threads at a time.
  virtual std::vector<at::Tensor> batch(std::span<const StreamedRecord> records,
                                        std::int64_t epoch) const = 0;
};

// The records of `reader`, shuffled within windows of `window` of them, which are in memory one at
// a time. The order follows from (seed, epoch) alone, so it needs nothing but a position to go on
// from. Error(kInvalid) unless `window` is above 0.
std::unique_ptr<RecordReader> shuffled_in_windows(std::unique_ptr<RecordReader> reader,
                                                  std::int64_t window, std::uint64_t seed,
                                                  std::int64_t epoch);

}  // namespace paceline::data
