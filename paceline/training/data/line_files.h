#pragma once

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

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paceline/training/data/sample_dataset.h"
#include "paceline/training/data/streamed_dataset.h"

namespace paceline::data {

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
