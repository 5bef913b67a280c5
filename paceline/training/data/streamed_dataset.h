#pragma once

// Data that is read from its beginning to its end, because its size is not known or its samples
// cannot be accessed by index: a stream of records, which a DataLoader deals to the ranks and
// combines into batches; and lines of text files as such a stream.
//
//   data::DataLoader loader(stream, group->world_size(), group->rank(),
//                           {.batch_size = 32, .num_threads = 2});
//
// Every rank reads all records, in the same order, and keeps its own. So finding a record should be
// cheap; making tensors of it may be expensive, because each rank's threads do that only for the
// rank's own records. The number of ranks decides only which rank takes a record, and a position is
// a single number: any number of ranks can continue in the middle of an epoch.

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

class StreamedDataset {
 public:
  struct Record {
    std::string bytes;
    std::shared_ptr<const std::string> file;  // the file of the record; null: not known
    std::int64_t line = 0;                    // the record's line in the file, from 1; 0: not known
    std::int64_t number = 0;  // the record's position in the epoch, from 0; a DataLoader sets it
  };

  // Reads the records of an epoch, in order. Thread safety: none.
  class Reader {
   public:
    virtual ~Reader() = default;
    // Returns the next record; nullopt at the end.
    virtual std::optional<Record> next() = 0;
    // Skips `count` records, or all remaining ones if there are fewer; returns the number skipped.
    virtual std::int64_t skip(std::int64_t count);
  };

  virtual ~StreamedDataset() = default;
  virtual std::string name() const = 0;  // for messages
  // Returns a reader of the records of an epoch, the same on every rank. A random order must depend
  // only on `epoch` and the stream's own seed.
  virtual std::unique_ptr<Reader> read(std::int64_t epoch) const = 0;
  // Returns these records as tensors whose dim 0 counts the records, as Dataset::batch() does.
  // Random choices must depend only on `epoch`, the record's number and the stream's own seed.
  // Thread safety: several threads may call it at the same time.
  virtual std::vector<at::Tensor> batch(std::span<const Record> records,
                                        std::int64_t epoch) const = 0;
};

struct LineFilesOptions {
  // 0: lines keep the order of the files. Above 0: every epoch takes the files in another order,
  // and shuffles the lines within windows of this many lines, which may span several files.
  std::int64_t shuffle_window = 0;
  std::uint64_t seed = 0;
  std::int64_t max_line_bytes = 64 << 20;  // a longer line is an error
  Collate collate = stacked;
};

// Text files with one sample per line, plain or gzip, as one stream: JSON lines, CSV, sentences.
//
//   const auto lines = std::make_shared<data::LineFiles>(
//       std::vector<std::string>{"a.jsonl", "b.jsonl.gz"},
//       [&](const data::StreamedDataset::Record& line, std::int64_t epoch) -> data::Sample { ... },
//       data::LineFilesOptions{.shuffle_window = 10000, .collate = data::padded()});
//
// A line is a record, without its line end (\n or \r\n); an empty line is an empty record. The
// UTF-8 byte order mark before the first line is left out; byte order marks of other encodings are
// an error. To continue in the middle of an epoch, the earlier lines are read again, about as fast
// as the file can be read or unpacked. Memory: the lines of a window and of the batches prepared
// ahead.
//
// The files must not change while an epoch is read or continued. Thread safety: all functions are
// const; any thread may call them.
class LineFiles : public StreamedDataset {
 public:
  // Makes a sample from a line. Random choices must depend only on the record's number and the
  // epoch. Several threads may call the function at the same time.
  using Parse = std::function<Sample(const Record& line, std::int64_t epoch)>;

  // Error(kInvalid) if there are no files or an option is out of range; kSystem when a file cannot
  // be opened.
  LineFiles(std::vector<std::string> paths, Parse parse, const LineFilesOptions& options = {});

  std::string name() const override;
  // The reader's errors name the file, and the line or the byte if one is known: kSystem; kCorrupt
  // for damaged gzip data, for a text whose byte order mark is not that of UTF-8, for a Git LFS
  // pointer file, or for a line that is too long.
  std::unique_ptr<Reader> read(std::int64_t epoch) const override;
  // An Error of `parse` is thrown again, with the file and the line before its text.
  std::vector<at::Tensor> batch(std::span<const Record> records, std::int64_t epoch) const override;

 private:
  const std::vector<std::shared_ptr<const std::string>> paths_;  // shared with the records
  const Parse parse_;
  const LineFilesOptions options_;
};

}  // namespace paceline::data
