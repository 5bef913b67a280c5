#pragma once

// Data that is read from its beginning to its end, because its size is not known or its samples
// have no addresses: a stream of records, which a DataLoader deals to the ranks and makes batches
// of; and lines of text files as such a stream.
//
//   data::DataLoader loader(stream, {.num_ranks = group->world_size(), .rank = group->rank()},
//                           {.batch_size = 32, .num_threads = 2});
//
// Every rank reads all records, in the same order, and keeps its own. So finding a record must be
// cheap; making tensors of it may be expensive, because each rank's threads do that for its own
// records only. The number of ranks decides only which rank takes a record, and a position is one
// number: any number of ranks can continue an epoch in its middle.

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
  std::shared_ptr<const std::string> file;  // the file that it is from; null: not known
  std::int64_t line = 0;                    // its line in the file, from 1; 0: not known
  std::int64_t number = 0;                  // its place in the epoch, from 0; a DataLoader sets it
};

// Reads the records of an epoch, one after another. Thread safety: none.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // The next record; nothing at the end.
  virtual std::optional<StreamedRecord> next() = 0;
  // Skips `count` records, or all that are left; returns how many.
  virtual std::int64_t skip(std::int64_t count);
};

class StreamedDataset {
 public:
  virtual ~StreamedDataset() = default;
  virtual std::string name() const = 0;  // for messages
  // The records of an epoch, the same on every rank. A random order must depend on `epoch` and the
  // stream's own seed alone.
  virtual std::unique_ptr<RecordReader> read(std::int64_t epoch) const = 0;
  // Returns these records as tensors whose dim 0 counts them, as Dataset::batch(). Random choices
  // must depend on `epoch`, the record's number and the stream's own seed alone. Thread safety:
  // called by several threads at a time.
  virtual std::vector<at::Tensor> batch(std::span<const StreamedRecord> records,
                                        std::int64_t epoch) const = 0;
};

// The records of `reader`, shuffled within windows of `window` records, of which one is in memory
// at a time. The order follows from (seed, epoch) alone, so a position is all that is needed to
// continue. Error(kInvalid) unless `window` is above 0.
std::unique_ptr<RecordReader> shuffled_in_windows(std::unique_ptr<RecordReader> reader,
                                                  std::int64_t window, std::uint64_t seed,
                                                  std::int64_t epoch);

struct LineFilesOptions {
  // 0: lines come as they are in the files. Otherwise every epoch takes the files in another order,
  // and shuffles the lines within windows of this many, which may cover several files.
  std::int64_t shuffle_window = 0;
  std::uint64_t seed = 0;
  std::int64_t max_line_bytes = 64 << 20;  // a longer line is an error
  Collate collate = stacked;
};

// Text files with a sample in each line, plain or gzip, as one stream: JSON lines, CSV, sentences.
//
//   const auto lines = std::make_shared<data::LineFiles>(
//       std::vector<std::string>{"a.jsonl", "b.jsonl.gz"},
//       [&](const data::StreamedRecord& line, std::int64_t epoch) -> data::Sample { ... },
//       data::LineFilesOptions{.shuffle_window = 10000, .collate = data::padded()});
//
// A line is a record, without its end (\n or \r\n); an empty line is an empty record. The byte
// order mark of UTF-8 before the first line is left out; those of other encodings are an error. To
// continue in the middle of an epoch, the lines before are read again, about as fast as the file
// can be read or unpacked. Memory: the lines of a window and of the batches prepared ahead.
//
// The files must not change while an epoch is read or continued. Thread safety: const, any thread.
class LineFiles : public StreamedDataset {
 public:
  // Makes a sample of a line. Random choices must follow from the record's number and the epoch.
  // Called by several threads at a time.
  using Parse = std::function<Sample(const StreamedRecord& line, std::int64_t epoch)>;

  // Error(kInvalid) without files or with options that do not fit; kSystem when a file cannot be
  // opened.
  LineFiles(std::vector<std::string> paths, Parse parse, const LineFilesOptions& options = {});

  std::string name() const override;
  // The reader's errors name file and line: kSystem; kCorrupt for damaged gzip data, a text whose
  // mark says another encoding than UTF-8, a pointer of Git LFS, or a line that is too long.
  std::unique_ptr<RecordReader> read(std::int64_t epoch) const override;
  // An Error of `parse` is thrown again with file and line in front.
  std::vector<at::Tensor> batch(std::span<const StreamedRecord> records,
                                std::int64_t epoch) const override;

 private:
  const std::vector<std::shared_ptr<const std::string>> paths_;  // owners: this and the records
  const Parse parse_;
  const LineFilesOptions options_;
};

}  // namespace paceline::data
