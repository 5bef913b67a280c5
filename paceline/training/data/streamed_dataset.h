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
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/data/dataset.h"

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

// Text files of a sample a line, plain or gzip, as one stream: JSON lines, CSV, sentences.
//
//   const auto lines = std::make_shared<data::LineFiles>(
//       std::vector<std::string>{"a.jsonl", "b.jsonl.gz"},
//       [&](const data::StreamedRecord& line, std::int64_t epoch) -> data::Sample { ... },
//       data::LineFilesOptions{.shuffle_window = 10000, .collate = data::padded()});
//
// A line is a record, without its end (\n or \r\n); an empty line is an empty record. The byte
// order mark of UTF-8 before the first line is left out; those of other encodings are an error.
// Continuing in the middle of an epoch reads over what comes before, about as fast as the file is
// read or unpacked. Memory: the lines of a window and of the batches prepared ahead.
//
// The files must not change while an epoch is read or continued. Thread safety: const, any thread.

struct LineFilesOptions {
  // 0: lines come as they are in the files. Otherwise every epoch takes the files in another order,
  // and shuffles the lines within windows of so many, which may cover several files.
  std::int64_t shuffle_window = 0;
  std::uint64_t seed = 0;
  std::int64_t max_line_bytes = 64 << 20;  // a longer line is an error
  Collate collate = stacked;
};

class LineFiles : public StreamedDataset {
 public:
  // What is random about a sample must follow from the record's number and the epoch. Called by
  // several threads at a time.
  using Parse = std::function<Sample(const StreamedRecord& line, std::int64_t epoch)>;

  // Error(kInvalid) without files or with options that do not fit; kSystem when a file cannot be
  // opened.
  LineFiles(std::vector<std::string> paths, Parse parse, const LineFilesOptions& options = {});

  std::string name() const override;
  // Its errors name file and line: kSystem, kCorrupt for damaged gzip data, a text in another
  // encoding than UTF-8 by its mark, a pointer of Git LFS, or a line that is too long.
  std::unique_ptr<RecordReader> read(std::int64_t epoch) const override;
  // An Error of `parse` gets file and line in front.
  std::vector<at::Tensor> batch(std::span<const StreamedRecord> records,
                                std::int64_t epoch) const override;

 private:
  const std::vector<std::shared_ptr<const std::string>> paths_;  // owners: this and the records
  const Parse parse_;
  const LineFilesOptions options_;
};

}  // namespace paceline::data
